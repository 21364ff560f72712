#include "worker/barrier/star/rendezvous.h"

#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "worker/barrier/missing_ranks.h"

namespace bfio::worker {
namespace {

// More unknown connections than this at once are not our peers: the oldest go.
constexpr size_t kMaxStrangers = 256;
constexpr absl::Duration kFirstRetry = absl::Milliseconds(5);
constexpr absl::Duration kLastRetry = absl::Milliseconds(100);

Handshake Introduction(const RendezvousSpec& spec, WireType type) {
  return {type, spec.group.epoch, spec.group.rank, spec.group.world_size, spec.listen_address};
}

// Sleeps, unless interrupted.
void Pause(const RendezvousSpec& spec, absl::Duration duration) {
  std::array<pollfd, 1> fds{{{spec.interrupt.fd(), POLLIN, 0}}};
  Poll(absl::MakeSpan(fds), std::min(spec.deadline_ns, MonotonicNs() + absl::ToInt64Nanoseconds(duration)));
}

// Waits for the answer to a Join. UNAVAILABLE: worth another try; FAILED_PRECONDITION: not.
absl::StatusOr<Address> AwaitWelcome(const RendezvousSpec& spec, Connection& root) {
  std::array<pollfd, 2> fds{{{spec.interrupt.fd(), POLLIN, 0}, {root.fd(), POLLIN, 0}}};
  for (;;) {
    if (!Poll(absl::MakeSpan(fds), spec.deadline_ns))
      return absl::DeadlineExceededError("no answer from rank 0");
    if (fds[0].revents != 0) return absl::CancelledError("interrupted");
    switch (root.ReadMessage(kHandshakeBytes)) {
      case Connection::Read::kPartial:
        continue;
      case Connection::Read::kClosed:
        return absl::UnavailableError("rank 0 closed the connection");
      case Connection::Read::kMessage:
        break;
    }
    const auto answer = DecodeHandshake(root.message());
    if (!answer.has_value()) return absl::UnavailableError("garbage instead of rank 0's answer");
    if (answer->type == WireType::kWelcome && answer->epoch == spec.group.epoch) return answer->address;
    if (answer->type == WireType::kReject && answer->epoch > spec.group.epoch) {
      return absl::FailedPreconditionError(absl::StrCat("rank 0 is in epoch ", answer->epoch, " already"));
    }
    return absl::UnavailableError("rank 0 is not in this epoch yet");
  }
}

struct Welcome {
  Connection root;
  // Empty host: the parent is rank 0.
  Address parent;
};

absl::StatusOr<Welcome> JoinOnce(const RendezvousSpec& spec, const Address& root) {
  auto fd = Connect(root, spec.deadline_ns, spec.interrupt);
  if (!fd.ok()) return fd.status();
  Welcome welcome{Connection(*std::move(fd)), {}};
  if (!welcome.root.Send(Encode(Introduction(spec, WireType::kJoin)))) {
    return absl::UnavailableError("rank 0 closed the connection");
  }
  auto parent = AwaitWelcome(spec, welcome.root);
  if (!parent.ok()) return parent.status();
  welcome.parent = *std::move(parent);
  return welcome;
}

absl::StatusOr<Welcome> Join(const RendezvousSpec& spec, const Address& root) {
  for (absl::Duration retry = kFirstRetry;; retry = std::min(2 * retry, kLastRetry)) {
    auto welcome = JoinOnce(spec, root);
    if (welcome.ok() || absl::IsCancelled(welcome.status())) return welcome;
    if (absl::IsFailedPrecondition(welcome.status())) {
      return absl::UnavailableError(welcome.status().message());
    }
    if (MonotonicNs() >= spec.deadline_ns) {
      return absl::DeadlineExceededError(absl::StrCat("rank ", spec.group.rank, " could not join at ",
                                                      FormatAddress(root), ": ", welcome.status().message()));
    }
    Pause(spec, retry);
    if (spec.interrupt.IsSet()) return absl::CancelledError("interrupted");
  }
}

absl::StatusOr<Connection> Attach(const RendezvousSpec& spec, const Address& parent) {
  auto fd = Connect(parent, spec.deadline_ns, spec.interrupt);
  if (!fd.ok()) return fd.status();
  Connection connection(*std::move(fd));
  if (!connection.Send(Encode(Introduction(spec, WireType::kAttach)))) {
    return absl::UnavailableError("the parent closed the connection");
  }
  return connection;
}

absl::StatusOr<Links> Host(const RendezvousSpec& spec) {
  Acceptor acceptor(spec, WireType::kJoin, {1, spec.group.world_size});
  if (absl::Status status = acceptor.Run(); !status.ok()) return status;
  Links links;
  for (int32_t rank = 1; rank < spec.group.world_size; ++rank) {
    Acceptor::Arrival& arrival = acceptor.arrivals()[rank - 1];
    Handshake welcome = Introduction(spec, WireType::kWelcome);
    const int32_t parent = ParentOf(rank, spec.fan_out);
    welcome.address = parent == 0 ? Address{} : acceptor.arrivals()[parent - 1].address;
    if (!arrival.connection.Send(Encode(welcome))) {
      return absl::UnavailableError(absl::StrCat("rank ", rank, " left while the group formed"));
    }
    if (parent == 0) links.children.push_back(std::move(arrival.connection));
  }
  return links;
}

absl::StatusOr<Links> Visit(const RendezvousSpec& spec) {
  auto root = ParseAddress(spec.group.communicator_id);
  if (!root.ok()) return root.status();
  auto welcome = Join(spec, *root);
  if (!welcome.ok()) return welcome.status();
  Links links;
  if (welcome->parent.host.empty()) {
    links.parent = std::move(welcome->root);
  } else {
    auto parent = Attach(spec, welcome->parent);
    if (!parent.ok()) return parent.status();
    links.parent = *std::move(parent);
  }
  const RankRange children = ChildrenOf(spec.group.rank, spec.fan_out, spec.group.world_size);
  if (children.size() > 0) {
    Acceptor acceptor(spec, WireType::kAttach, children);
    if (absl::Status status = acceptor.Run(); !status.ok()) return status;
    for (Acceptor::Arrival& arrival : acceptor.arrivals())
      links.children.push_back(std::move(arrival.connection));
  }
  return links;
}

}  // namespace

absl::StatusOr<Links> Rendezvous(const RendezvousSpec& spec) {
  return spec.group.rank == 0 ? Host(spec) : Visit(spec);
}

Acceptor::Acceptor(const RendezvousSpec& spec, WireType type, RankRange ranks)
    : spec_(spec), type_(type), ranks_(ranks), arrivals_(ranks.size()) {}

absl::Status Acceptor::Run() {
  for (;;) {
    FillPollSet();
    // Once all are here it only looks whether one has gone again meanwhile.
    const bool complete = Missing() == 0;
    const bool ready = Poll(absl::MakeSpan(poll_set_), complete ? 0 : NextDeadline());
    if (poll_set_[0].revents != 0) return absl::CancelledError("interrupted");
    DropDeparted();
    if (complete && Missing() == 0) return absl::OkStatus();
    if (!ready && MonotonicNs() >= spec_.deadline_ns) return TooLate();
    ServeStrangers();
    if (poll_set_[1].revents != 0) AcceptAll();
  }
}

void Acceptor::FillPollSet() {
  poll_set_.clear();
  poll_set_.push_back({spec_.interrupt.fd(), POLLIN, 0});
  poll_set_.push_back({spec_.listener.get(), POLLIN, 0});
  for (const Stranger& stranger : strangers_) poll_set_.push_back({stranger.connection.fd(), POLLIN, 0});
  // A child may already send its first step, so only its departure is of interest. poll skips descriptors of
  // -1.
  for (const Arrival& arrival : arrivals_) poll_set_.push_back({arrival.connection.fd(), POLLRDHUP, 0});
}

int64_t Acceptor::NextDeadline() const {
  // Strangers are in the order of their deadlines.
  return strangers_.empty() ? spec_.deadline_ns : std::min(spec_.deadline_ns, strangers_.front().deadline_ns);
}

void Acceptor::DropDeparted() {
  size_t at = 2 + strangers_.size();
  for (Arrival& arrival : arrivals_) {
    if (poll_set_[at++].revents != 0) arrival = Arrival();
  }
}

void Acceptor::ServeStrangers() {
  const int64_t now = MonotonicNs();
  size_t at = 2;
  for (auto it = strangers_.begin(); it != strangers_.end();) {
    const bool readable = poll_set_[at++].revents != 0;
    const auto read = readable ? it->connection.ReadMessage(kHandshakeBytes) : Connection::Read::kPartial;
    if (read == Connection::Read::kMessage) Admit(*it);
    const bool waiting = read == Connection::Read::kPartial && now < it->deadline_ns;
    it = waiting ? std::next(it) : strangers_.erase(it);
  }
}

bool Acceptor::Admit(Stranger& stranger) {
  const auto who = DecodeHandshake(stranger.connection.message());
  if (!who.has_value()) return false;  // not one of ours: no answer
  const bool expected = who->type == type_ && who->epoch == spec_.group.epoch &&
                        who->world_size == spec_.group.world_size && who->rank >= ranks_.begin &&
                        who->rank < ranks_.end && !arrivals_[who->rank - ranks_.begin].connection.valid();
  if (!expected) {
    // Best effort: it tells a rank of an older epoch to stop trying.
    stranger.connection.Send(Encode(Introduction(spec_, WireType::kReject)));
    return false;
  }
  arrivals_[who->rank - ranks_.begin] = {std::move(stranger.connection), who->address};
  return true;
}

void Acceptor::AcceptAll() {
  const int64_t deadline_ns = MonotonicNs() + absl::ToInt64Nanoseconds(spec_.handshake_timeout);
  for (Fd fd = Accept(spec_.listener); fd.valid(); fd = Accept(spec_.listener)) {
    strangers_.push_back({Connection(std::move(fd)), deadline_ns});
    if (strangers_.size() > kMaxStrangers) strangers_.pop_front();
  }
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
