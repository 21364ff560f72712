// Clients that resume with a ticket: only the ticket that the request was given is valid.
#include <string>

#include "google/protobuf/stubs/logging.h"
#include "router/frontend/inference_service.h"
#include "tests/fuzz/fuzz.h"

namespace {

using bfio::TicketKeys;
using bfio::fuzz::Check;
using bfio::router::ClientRequest;
using bfio::router::ResumeTickets;

const absl::Time kNow = absl::FromUnixSeconds(1'800'000'000);

void CheckKeysFile(const std::string& text) {
  const auto keys = TicketKeys::Parse(text, "fuzz");
  if (!keys.ok()) {
    Check(keys.status().message().substr(0, 5) == "fuzz:", "an error names the file");
    return;
  }
  const std::string ticket = keys->Issue(text, kNow + absl::Seconds(1));
  Check(ticket.size() == TicketKeys::kTicketBytes, "tickets have one size");
  Check(keys->Claim(ticket, text, kNow).has_value(), "a ticket is good for its facts");
  Check(!keys->Claim(ticket, text, kNow + absl::Seconds(1)), "until it expires");
}

}  // namespace

// Four chunks: a keys file, a ticket, changes to a valid ticket, and a request on the wire.
int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const google::protobuf::LogSilencer quiet;
  static const auto* const tickets =
      new ResumeTickets(*TicketKeys::Parse(std::string(32, 'k'), "keys"), absl::Seconds(30));
  bfio::fuzz::Input input(data, size);
  CheckKeysFile(input.Chunk());
  const std::string shown = input.Chunk();
  const uint8_t at = input.Byte(), change = input.Byte();
  bfio::v1::GenerateRequest message;
  if (!message.ParseFromString(input.Chunk())) return 0;
  const auto request = bfio::router::ToClientRequest(message, bfio::router::RequestLimits());
  if (!request.ok()) return 0;
  Check(!tickets->ModelOf(shown, *request, kNow), "no client forges a ticket");
  Check(!tickets->ModelOf(message.resume_ticket(), *request, kNow), "nor sends one that was not given");

  ClientRequest first = *request;
  first.resume_from.reset();
  const ResumeTickets::Issue issue = tickets->Prepare(first, absl::InfiniteFuture(), kNow);
  const std::string model(shown.substr(0, TicketKeys::kMaxClaimBytes));
  const std::string ticket = issue == nullptr ? "" : issue(model);
  Check(ticket.empty() == (!first.resumable || !first.has_prompt()), "resumable requests get one");
  if (ticket.empty()) return 0;
  Check(tickets->ModelOf(ticket, *request, kNow) == model, "the request that it was given to proves itself");
  std::string changed = ticket;
  changed[at % changed.size()] = static_cast<char>(changed[at % changed.size()] ^ change);
  Check(tickets->ModelOf(changed, *request, kNow).has_value() == (change == 0), "no other ticket does");
  ClientRequest larger = *request;
  larger.max_new_tokens += 1 + change;
  Check(!tickets->ModelOf(ticket, larger, kNow), "nor any other request");
  return 0;
}
