// The star barrier's handshake: random bytes from a peer at a rank's port, or at rank 0's address, do not
// authenticate it, and neither does a valid exchange of which any part is changed. Also the communicator id.
#include <algorithm>

#include "tests/fuzz/fuzz.h"
#include "worker/barrier/star/join_proof.h"

namespace {

using namespace bfio::worker;  // NOLINT: a program of one file
using bfio::fuzz::Check;

Nonce NonceOf(uint8_t value) {
  Nonce nonce{};
  nonce.fill(value);
  return nonce;
}

// Changes `words` as the input says; false when it changes nothing.
template <typename Words>
bool Change(bfio::fuzz::Input& input, Words& words) {
  const Words before = words;
  for (int i = input.Byte() % 4; i >= 0; --i) {
    const size_t at = (size_t{input.Byte()} << 8 | input.Byte()) % words.size();
    words[at] = static_cast<uint8_t>(words[at] ^ input.Byte());
  }
  return words != before;
}

void Raw(absl::Span<const uint8_t> bytes) {
  AcceptorProof acceptor(NonceOf(1), NonceOf(2));
  JoinerProof joiner(NonceOf(1), NonceOf(3));
  Check(!joiner.OnChallenge(bytes, Handshake()).has_value(), "an impostor hears no introduction");
  const size_t opening = std::min(bytes.size(), kOpeningBytes);
  if (!acceptor.OnOpening(bytes.first(opening)).has_value()) return;
  Check(opening == kOpeningBytes, "an opening is whole");
  Check(!acceptor.OnIntroduction(bytes.subspan(opening)).has_value(), "no introduction without a proof");
}

void Changed(bfio::fuzz::Input& input) {
  AcceptorProof acceptor(NonceOf(1), NonceOf(2));
  JoinerProof joiner(NonceOf(1), NonceOf(3));
  Handshake introduction;
  introduction.epoch = input.Number();
  introduction.rank = input.Byte();
  introduction.address.host = input.Chunk().substr(0, bfio::kMaxHostBytes);
  auto challenge = *acceptor.OnOpening(joiner.Open());
  if (input.Byte() % 3 == 0 && Change(input, challenge)) {
    return Check(!joiner.OnChallenge(challenge, introduction).has_value(), "a challenge is the acceptor's");
  }
  Sealed sealed = *joiner.OnChallenge(challenge, introduction);
  if (input.Byte() % 2 == 0 && Change(input, sealed)) {
    return Check(!acceptor.OnIntroduction(sealed).has_value(), "an introduction is the joiner's");
  }
  const auto who = acceptor.OnIntroduction(sealed);
  Check(who.has_value() && who->epoch == introduction.epoch && who->rank == introduction.rank &&
            who->address == introduction.address,
        "who proves itself is known");
  Sealed answer = acceptor.Answer(introduction);
  const bool changed = Change(input, answer);
  Check(joiner.OnAnswer(answer).has_value() == !changed, "an answer is the acceptor's");
}

void Id(absl::string_view text) {
  const auto id = ParseStarId(text);
  if (!id.ok()) return;
  Check(id->root.port != 0 && !id->root.host.empty(), "an id says where rank 0 listens");
  const auto again = ParseStarId(FormatStarId(*id));
  Check(again.ok() && again->root == id->root && again->secret == id->secret, "an id survives its text");
}

}  // namespace

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  bfio::fuzz::Input input(data, size);
  Raw({data, size});
  Changed(input);
  Id(bfio::fuzz::Text(data, size));
  return 0;
}
