// A rank that stops while its server answers (vllm-ascend #13964): it is found, gets nothing, and comes back.
#include <atomic>
#include <memory>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "absl/time/clock.h"
#include "tests/integration/picker_fixture.h"

namespace bfio::testing {
namespace {

using SilentRankTest = PickerTest;

TEST_F(SilentRankTest, ItIsFoundAndAvoidedAlthoughItsClientsGiveUp) {
  HttpEngine stops, works, idle;
  stops.generated = works.generated = 1000;
  // Nothing is placed on the third one: its slots are others'.
  idle.running = kSlots;
  Serve({&stops, &works, &idle}, {"--step_timeout=1s"});
  std::atomic<bool> ends = false;
  std::thread tokens([&] {
    for (; !ends; absl::SleepFor(absl::Milliseconds(50))) ++works.generated;
  });
  const auto place = [&] {
    auto call = std::make_unique<Call>(*stub_, ext_proc::BUFFERED);
    return std::pair(call->Place(), std::move(call));
  };
  std::vector<std::unique_ptr<Call>> running, silent;
  for (int i = 0; i < 2 * kSlots; ++i) {
    auto [at, call] = place();
    (at == stops.address() ? silent : running).push_back(std::move(call));
  }
  ASSERT_THAT(silent, ::testing::SizeIs(kSlots));
  stops.running = works.running = kSlots;
  // Each second the client of one gives up, and another one comes.
  for (size_t i = 0; !absl::StrContains(cluster_->router().Stderr(), "no step report in time"); ++i) {
    absl::SleepFor(absl::Seconds(1));
    ASSERT_LT(i, 1000u) << cluster_->router().Stderr();
    silent[i % kSlots]->End();
    silent[i % kSlots] = std::make_unique<Call>(*stub_, ext_proc::BUFFERED);
  }
  EXPECT_THAT(
      cluster_->router().Stderr(),
      ::testing::HasSubstr(absl::StrCat("engine http://", stops.address(), ": rank 0 is not used for now")));
  ASSERT_TRUE(cluster_->WaitFor("three ranks", [](const v1::ClusterState& state) {
    return Serving(state) == 3 && state.steps().silent_ranks() == 1;
  }));
  for (auto& call : running) call->End();
  for (int i = 0; i < 3 * kSlots; ++i) {
    auto [at, call] = place();
    EXPECT_EQ(at, works.address());
    call->End();
  }
  // Its requests go on, and it is used again.
  ++stops.generated;
  stops.running = 0;
  EXPECT_TRUE(Eventually([&] {
    auto [at, call] = place();
    call->End();
    return at == stops.address();
  }));
  ends = true;
  tokens.join();
}

}  // namespace
}  // namespace bfio::testing
