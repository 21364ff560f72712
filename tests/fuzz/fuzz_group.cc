// The router's end of the protocol: workers that come, answer, fail, leave and lie, in any order, and time.
//
// Streams are real sessions that no server has taken up: what they would write stays with them.
#include <memory>
#include <set>
#include <string>
#include <type_traits>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/spdlog.h"
#include "google/protobuf/stubs/logging.h"
#include "router/group/group.h"
#include "tests/fuzz/fuzz.h"

namespace {

using bfio::fuzz::Check;
using bfio::router::Group;
using bfio::router::Member;
using bfio::router::WorkerSession;

class Epochs final : public Group::Listener {
 public:
  void OnEpochOpen(uint64_t epoch, const std::vector<Member*>& ranks) override {
    Check(!open, "an epoch is closed before the next one opens");
    Check(epoch > last, "epochs grow");
    Check(!ranks.empty(), "an epoch has ranks");
    for (size_t rank = 0; rank < ranks.size(); ++rank) {
      Check(ranks[rank]->ready && ranks[rank]->spoken_epoch == epoch, "every rank is ready");
      Check(ranks[rank]->rank == static_cast<bfio::core::WorkerIndex>(rank), "ranks are their places");
    }
    open = true;
    last = epoch;
  }
  void OnEpochClosed() override {
    Check(open, "only an open epoch is closed");
    open = false;
  }
  bool open = false;
  uint64_t last = 0;
};

// Lets go of a session as gRPC does at a call's end.
struct Session {
  std::shared_ptr<WorkerSession> session;
  explicit Session(int number)
      : session(WorkerSession::Create(absl::StrCat("fuzz:", number),
                                      {[](std::shared_ptr<WorkerSession>, bfio::v1::WorkerMessage) {},
                                       [](std::shared_ptr<WorkerSession>) {}})) {}
  ~Session() { session->OnDone(); }
};

bfio::v1::Hello HelloOf(bfio::fuzz::Input& input) {
  bfio::v1::Hello hello;
  if (input.Byte() % 8 == 0) {
    hello.ParseFromString(input.Chunk());
    return hello;
  }
  hello.set_worker_id(absl::StrCat("w", input.Byte() % 4));
  hello.set_slots(2);
  hello.set_kv_tokens(1000);
  hello.set_max_sequence_tokens(1000);
  hello.set_engine("fuzz");
  hello.set_barrier(input.Byte() % 8 == 0 ? "nccl" : "star");
  hello.set_communicator_offer("127.0.0.1:1");
  return hello;
}

}  // namespace

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const google::protobuf::LogSilencer quiet;
  spdlog::set_level(spdlog::level::off);
  bfio::fuzz::Input input(data, size);
  bfio::router::RouterOptions options;
  options.workers = 1 + input.Byte() % 3;
  Epochs epochs;
  const auto owned = std::make_unique<Group>(options, /*instance=*/1, &epochs);
  Group& group = *owned;
  absl::Time now = absl::UnixEpoch();
  std::vector<std::unique_ptr<Session>> sessions;
  const auto any_member = [&]() -> Member* {
    const std::vector<Member*> members = group.members();
    return members.empty() ? nullptr : members[input.Byte() % members.size()];
  };
  for (int i = 0; !input.empty() && i < 500; ++i) {
    switch (input.Byte() % 9) {
      case 0:
        if (sessions.size() >= 64) break;
        sessions.push_back(std::make_unique<Session>(i));
        group.OnHello(sessions.back()->session, HelloOf(input), now);
        break;
      case 1:
      case 2:
        if (Member* member = any_member(); member != nullptr) {
          bfio::v1::EpochReady ready;
          ready.set_epoch(input.Byte() % 8 == 0 ? input.Number() : group.epoch());
          ready.set_communicator_offer("127.0.0.1:2");
          if (input.Byte() % 8 == 0) ready.set_error("fuzz");
          group.OnEpochReady(*member, ready, now);
        }
        break;
      case 3:
        if (Member* member = any_member(); member != nullptr) {
          const uint32_t missing[] = {input.Byte(), input.Number() % 8 == 0 ? 0xffffffffu : 0u};
          group.OnBarrierError(*member, "fuzz", absl::MakeConstSpan(missing).first(input.Byte() % 3), now);
        }
        break;
      case 4:
        if (Member* member = any_member(); member != nullptr) group.OnGone(member->session.get(), now);
        break;
      case 5:
        if (Member* member = any_member(); member != nullptr) {
          group.Expel(*member, grpc::Status(grpc::StatusCode::UNKNOWN, "fuzz"), now);
        }
        break;
      case 6:
        if (Member* member = any_member(); member != nullptr) group.Release(*member, now);
        break;
      case 7:
        now += absl::Milliseconds(50) * input.Byte();
        group.OnTimer(now);
        break;
      default:
        // A stream that never said hello.
        group.OnGone(nullptr, now);
    }
    Check(group.serving() == epochs.open, "the listener knows whether an epoch is open");
    std::set<std::string> names;
    for (const Member* member : group.members()) {
      Check(names.insert(member->hello.worker_id()).second, "a worker_id is attached once");
      Check(group.Find(member->session.get()) == member, "a member is found by its session");
    }
    for (const Member* member : group.ranks()) {
      const std::vector<Member*> members = group.members();
      Check(std::find(members.begin(), members.end(), member) != members.end(), "a rank is a member");
    }
  }
  // Left alone, answered by everybody, the group serves.
  for (int round = 0; round < 64 && !group.serving() && !group.members().empty(); ++round) {
    if (group.next_deadline() == absl::InfiniteFuture()) break;
    now = std::max(now, group.next_deadline());
    group.OnTimer(now);
    for (Member* member : group.members()) {
      bfio::v1::EpochReady ready;
      ready.set_epoch(group.epoch());
      group.OnEpochReady(*member, ready, now);
    }
  }
  Check(group.serving() || group.members().empty() || group.next_deadline() == absl::InfiniteFuture(),
        "a group whose members all answer serves in the end");
  return 0;
}
