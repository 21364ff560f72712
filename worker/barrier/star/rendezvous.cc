#include "worker/barrier/star/rendezvous.h"

#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/status_macros.h"

namespace bfio::worker {
namespace {

// Upper bound of unauthenticated connections; more cannot be from this group.
constexpr size_t kMaxPending = 256;
// Connections accepted in a row, before pending ones are served again.
constexpr int kMostAccepts = 64;
constexpr absl::Duration kFirstRetry = absl::Milliseconds(5);
constexpr absl::Duration kLastRetry = absl::Milliseconds(100);

Handshake Introduction(const RendezvousSpec& spec, WireType type) {
  return {type, spec.group.epoch, spec.group.rank, spec.group.world_size, spec.listen_address};
}

// Sleeps unless interrupted.
void Pause(const RendezvousSpec& spec, absl::Duration duration) {
  std::array<pollfd, 1> fds{{{spec.interrupt.fd(), POLLIN, 0}}};
  Poll(absl::MakeSpan(fds), std::min(spec.deadline_ns, MonotonicNs() + absl::ToInt64Nanoseconds(duration)));
}

// Waits for a message of `bytes` bytes from `who`. UNAVAILABLE when the connection ends first.
absl::Status AwaitMessage(const RendezvousSpec& spec, Connection& from, size_t bytes, absl::string_view who) {
  std::array<pollfd, 2> fds{{{spec.interrupt.fd(), POLLIN, 0}, {from.fd(), POLLIN, 0}}};
  for (;;) {
    if (!Poll(absl::MakeSpan(fds), spec.deadline_ns))
      return absl::DeadlineExceededError(absl::StrCat("no answer from ", who));
    if (fds[0].revents != 0) return absl::CancelledError("interrupted");
    switch (from.ReadMessage(bytes)) {
      case Connection::Read::kPartial: continue;
      case Connection::Read::kClosed:
        return absl::UnavailableError(absl::StrCat(who, " closed the connection"));
      case Connection::Read::kMessage: return absl::OkStatus();
    }
  }
}

// A connection that both ends have authenticated.
struct Introduced {
  Connection connection;
  JoinerProof proof;
};

absl::StatusOr<Introduced> Introduce(const RendezvousSpec& spec, const Address& to, WireType type,
                                     absl::string_view who) {
  BFIO_ASSIGN_OR_RETURN(auto fd, Connect(to, spec.deadline_ns, spec.interrupt));
  Nonce nonce;
  BFIO_RETURN_IF_ERROR(FillRandom(absl::MakeSpan(nonce)));
  Introduced out{Connection(std::move(fd)), JoinerProof(spec.id.secret, nonce)};
  const auto left = [&] { return absl::UnavailableError(absl::StrCat(who, " closed the connection")); };
  if (!out.connection.Send(out.proof.Open())) return left();
  BFIO_RETURN_IF_ERROR(AwaitMessage(spec, out.connection, kChallengeBytes, who));
  const auto introduction = out.proof.OnChallenge(out.connection.message(), Introduction(spec, type));
  if (!introduction.has_value()) {
    return absl::UnavailableError(absl::StrCat("the process at this address is not ", who, " of this epoch"));
  }
  if (!out.connection.Send(*introduction)) return left();
  return out;
}

// Retries `once` until the deadline. CANCELLED and FAILED_PRECONDITION, which becomes UNAVAILABLE, are final.
template <typename Once>
auto Retry(const RendezvousSpec& spec, const Address& to, const Once& once) -> decltype(once()) {
  for (absl::Duration retry = kFirstRetry;; retry = std::min(2 * retry, kLastRetry)) {
    auto result = once();
    if (result.ok() || absl::IsCancelled(result.status())) return result;
    if (absl::IsFailedPrecondition(result.status())) return absl::UnavailableError(result.status().message());
    if (MonotonicNs() >= spec.deadline_ns) {
      return absl::DeadlineExceededError(absl::StrCat("rank ", spec.group.rank, " could not join at ",
                                                      to.ToString(), ": ", result.status().message()));
    }
    Pause(spec, retry);
    if (spec.interrupt.IsSet()) return absl::CancelledError("interrupted");
  }
}

struct Welcome {
  Connection root;
  // Address of the parent; empty host: the parent is rank 0.
  Address parent;
};

absl::StatusOr<Welcome> JoinOnce(const RendezvousSpec& spec) {
  BFIO_ASSIGN_OR_RETURN(auto root, Introduce(spec, spec.id.root, WireType::kJoin, "rank 0"));
  BFIO_RETURN_IF_ERROR(AwaitMessage(spec, root.connection, kSealedBytes, "rank 0"));
  const auto answer = root.proof.OnAnswer(root.connection.message());
  if (!answer.has_value()) return absl::UnavailableError("rank 0 sent an invalid answer");
  if (answer->type == WireType::kWelcome && answer->epoch == spec.group.epoch)
    return Welcome{std::move(root.connection), answer->address};
  if (answer->type == WireType::kReject && answer->epoch > spec.group.epoch) {
    return absl::FailedPreconditionError(absl::StrCat("rank 0 is in epoch ", answer->epoch, " already"));
  }
  return absl::UnavailableError("rank 0 is not in this epoch yet");
}

absl::StatusOr<Welcome> Join(const RendezvousSpec& spec) {
  return Retry(spec, spec.id.root, [&] { return JoinOnce(spec); });
}

absl::StatusOr<Connection> Attach(const RendezvousSpec& spec, const Address& parent) {
  return Retry(spec, parent, [&]() -> absl::StatusOr<Connection> {
    BFIO_ASSIGN_OR_RETURN(auto attached, Introduce(spec, parent, WireType::kAttach, "the parent"));
    return std::move(attached.connection);
  });
}

absl::StatusOr<Links> Host(const RendezvousSpec& spec) {
  Acceptor acceptor(spec, WireType::kJoin, {1, spec.group.world_size});
  BFIO_RETURN_IF_ERROR(acceptor.Run());
  Links links;
  for (int32_t rank = 1; rank < spec.group.world_size; ++rank) {
    Acceptor::Arrival& arrival = acceptor.arrivals()[rank - 1];
    Handshake welcome = Introduction(spec, WireType::kWelcome);
    const int32_t parent = ParentOf(rank, spec.fan_out);
    welcome.address = parent == 0 ? Address{} : acceptor.arrivals()[parent - 1].address;
    if (!arrival.connection.Send(arrival.proof->Answer(welcome))) {
      return absl::UnavailableError(absl::StrCat("rank ", rank, " disconnected while the group formed"));
    }
    if (parent == 0) links.children.push_back(std::move(arrival.connection));
  }
  return links;
}

absl::StatusOr<Links> Visit(const RendezvousSpec& spec) {
  BFIO_ASSIGN_OR_RETURN(auto welcome, Join(spec));
  Links links;
  if (welcome.parent.host.empty()) {
    links.parent = std::move(welcome.root);
  } else {
    BFIO_ASSIGN_OR_RETURN(links.parent, Attach(spec, welcome.parent));
  }
  const RankRange children = ChildrenOf(spec.group.rank, spec.fan_out, spec.group.world_size);
  if (children.size() > 0) {
    Acceptor acceptor(spec, WireType::kAttach, children);
    BFIO_RETURN_IF_ERROR(acceptor.Run());
    for (Acceptor::Arrival& arrival : acceptor.arrivals())
      links.children.push_back(std::move(arrival.connection));
  }
  return links;
}

absl::Status Encrypt(const RendezvousSpec& spec, Connection& connection, TlsEnd end) {
  BFIO_ASSIGN_OR_RETURN(auto session, TlsSession::Create(connection.fd(), end, spec.id.secret));
  for (;;) {
    BFIO_ASSIGN_OR_RETURN(const auto events, session->Handshake());
    if (events == 0) break;
    std::array<pollfd, 2> fds{{{spec.interrupt.fd(), POLLIN, 0}, {connection.fd(), events, 0}}};
    if (!Poll(absl::MakeSpan(fds), spec.deadline_ns))
      return absl::DeadlineExceededError("the TLS handshake timed out");
    if (fds[0].revents != 0) return absl::CancelledError("interrupted");
  }
  connection.Encrypt(std::move(session));
  return absl::OkStatus();
}

// Starts TLS from the root downwards: a rank finishes with its parent before it begins with its children,
// which wait.
absl::Status Encrypt(const RendezvousSpec& spec, Links& links) {
  if (links.parent.valid()) {
    BFIO_RETURN_IF_ERROR(Encrypt(spec, links.parent, TlsEnd::kJoiner));
  }
  for (Connection& child : links.children) {
    BFIO_RETURN_IF_ERROR(Encrypt(spec, child, TlsEnd::kAcceptor));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<Links> Rendezvous(const RendezvousSpec& spec) {
  auto links = spec.group.rank == 0 ? Host(spec) : Visit(spec);
  if (!links.ok() || !spec.tls) return links;
  BFIO_RETURN_IF_ERROR(Encrypt(spec, *links));
  return links;
}

Acceptor::Acceptor(const RendezvousSpec& spec, WireType type, RankRange ranks)
    : spec_(spec), type_(type), ranks_(ranks), arrivals_(ranks.size()) {}

absl::Status Acceptor::Run() {
  for (;;) {
    FillPollSet();
    // Once all ranks have arrived, this round only checks that none has left since.
    const bool complete = Missing() == 0;
    Poll(absl::MakeSpan(poll_set_), complete ? 0 : NextDeadline());
    if (poll_set_[0].revents != 0) return absl::CancelledError("interrupted");
    DropDeparted();
    if (complete && Missing() == 0) return absl::OkStatus();
    // Checked in every round, because unauthenticated connections could keep this loop busy.
    if (MonotonicNs() >= spec_.deadline_ns) return TooLate();
    ServePending();
    if (poll_set_[1].revents != 0) AcceptSome();
  }
}

void Acceptor::FillPollSet() {
  poll_set_.clear();
  poll_set_.push_back({spec_.interrupt.fd(), POLLIN, 0});
  poll_set_.push_back({spec_.listener.get(), POLLIN, 0});
  for (const Pending& pending : pending_) poll_set_.push_back({pending.connection.fd(), POLLIN, 0});
  // A child may already send its first step, so only the end of its connection is polled. poll skips
  // descriptors of -1.
  for (const Arrival& arrival : arrivals_) poll_set_.push_back({arrival.connection.fd(), POLLRDHUP, 0});
}

int64_t Acceptor::NextDeadline() const {
  // Pending connections are ordered by deadline.
  return pending_.empty() ? spec_.deadline_ns : std::min(spec_.deadline_ns, pending_.front().deadline_ns);
}

void Acceptor::DropDeparted() {
  size_t at = 2 + pending_.size();
  for (Arrival& arrival : arrivals_) {
    if (poll_set_[at++].revents != 0) arrival = Arrival();
  }
}

void Acceptor::ServePending() {
  const int64_t now = MonotonicNs();
  size_t at = 2;
  for (auto it = pending_.begin(); it != pending_.end();) {
    const bool readable = poll_set_[at++].revents != 0;
    const bool waiting = (!readable || Serve(*it)) && now < it->deadline_ns;
    it = waiting ? std::next(it) : pending_.erase(it);
  }
}

bool Acceptor::Serve(Pending& pending) {
  for (;;) {
    switch (pending.connection.ReadMessage(pending.challenged ? kSealedBytes : kOpeningBytes)) {
      case Connection::Read::kPartial: return true;
      case Connection::Read::kClosed: return false;
      case Connection::Read::kMessage: break;
    }
    if (pending.challenged) {
      Admit(pending);
      return false;
    }
    const auto challenge = pending.proof.OnOpening(pending.connection.message());
    // Not a connection of this group: closed without an answer.
    if (!challenge.has_value() || !pending.connection.Send(*challenge)) return false;
    pending.challenged = true;
  }
}

void Acceptor::Admit(Pending& pending) {
  const auto who = pending.proof.OnIntroduction(pending.connection.message());
  if (!who.has_value()) return;  // no proof of the secret: no answer
  const bool expected = who->type == type_ && who->epoch == spec_.group.epoch &&
                        who->world_size == spec_.group.world_size && who->rank >= ranks_.begin &&
                        who->rank < ranks_.end && !arrivals_[who->rank - ranks_.begin].connection.valid();
  if (!expected) {
    // Best effort: tells a rank of an older epoch to stop retrying.
    pending.connection.Send(pending.proof.Answer(Introduction(spec_, WireType::kReject)));
    return;
  }
  arrivals_[who->rank - ranks_.begin] = {std::move(pending.connection), who->address, pending.proof};
}

void Acceptor::AcceptSome() {
  const int64_t deadline_ns = MonotonicNs() + absl::ToInt64Nanoseconds(spec_.handshake_timeout);
  for (int i = 0; i < kMostAccepts; ++i) {
    Accepted accepted = Accept(spec_.listener);
    Nonce nonce;
    if (!accepted.fd.valid() || !FillRandom(absl::MakeSpan(nonce)).ok()) return;
    Pending pending{Connection(std::move(accepted.fd)), AcceptorProof(spec_.id.secret, nonce),
                    std::move(accepted.account), deadline_ns};
    // Its first message has usually arrived with it.
    if (!Serve(pending)) continue;
    pending_.push_back(std::move(pending));
    if (pending_.size() > kMaxPending) DropOldestPending();
  }
}

void Acceptor::DropOldestPending() {
  absl::flat_hash_map<std::string, int> counts;
  for (const Pending& pending : pending_) ++counts[pending.account];
  const auto most = std::max_element(counts.begin(), counts.end(),
                                     [](const auto& a, const auto& b) { return a.second < b.second; });
  pending_.erase(std::find_if(pending_.begin(), pending_.end(),
                              [&](const Pending& pending) { return pending.account == most->first; }));
}

int32_t Acceptor::Missing() const {
  return static_cast<int32_t>(std::count_if(arrivals_.begin(), arrivals_.end(), [](const Arrival& arrival) {
    return !arrival.connection.valid();
  }));
}

absl::Status Acceptor::TooLate() const {
  std::vector<int32_t> ranks;
  for (int32_t i = 0; i < ranks_.size(); ++i) {
    if (!arrivals_[i].connection.valid()) ranks.push_back(ranks_.begin + i);
  }
  return BlameMissing(
      absl::DeadlineExceededError(absl::StrCat("epoch ", spec_.group.epoch, " did not form: missing rank",
                                               ranks.size() > 1 ? "s " : " ", absl::StrJoin(ranks, " "))),
      ranks);
}

}  // namespace bfio::worker
