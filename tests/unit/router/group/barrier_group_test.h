// Fixture for tests of one group with a barrier.
#ifndef BFIO_TESTS_UNIT_ROUTER_GROUP_BARRIER_GROUP_TEST_H_
#define BFIO_TESTS_UNIT_ROUTER_GROUP_BARRIER_GROUP_TEST_H_

#include <memory>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "router/group/group.h"
#include "tests/testing/group_world.h"

namespace bfio::router {

class BarrierGroupTest : public ::testing::Test {
 protected:
  static GroupSetOptions Options(int32_t workers) {
    GroupSetOptions options;
    options.group.workers = workers;
    return options;
  }
  void TearDown() override { EXPECT_THAT(world_->broken(), ::testing::IsEmpty()); }

  void Start(int32_t workers) { Start(Options(workers)); }
  void Start(const GroupSetOptions& options) {
    options_ = options;
    world_ = std::make_unique<GroupWorld>(options);
  }
  // Starts a router for these workers and runs it until they serve.
  void Serve(const std::vector<std::string>& names) {
    Start(static_cast<int32_t>(names.size()));
    world_->Serve(names);
    ASSERT_EQ(world_->Ranks(), names);
  }
  void Submit(core::RequestId first, core::RequestId last, uint32_t max_new = 20, bool resumable = true) {
    for (core::RequestId id = first; id <= last; ++id)
      ASSERT_TRUE(world_->book().Submit(id, 10, max_new, resumable).ok());
    world_->Decide();
  }
  // The status with which the router closed this connection of the worker.
  absl::Status ClosedWith(const std::string& name, MemberId member) {
    for (const CloseMember& close : world_->closed) {
      if (close.to == member) return close.status;
    }
    return absl::UnknownError(name + " was not closed");
  }
  // Reads messages and advances the time until the group serves.
  void Form() {
    for (int i = 0; i < 100; ++i) {
      world_->ReadAll();
      if (world_->group().serving()) return;
      world_->Wait();
    }
    FAIL() << "the group does not form";
  }
  absl::Time DeadlineIn(absl::Duration time) const { return world_->now + time; }

  GroupSetOptions options_;
  std::unique_ptr<GroupWorld> world_;
};

}  // namespace bfio::router

#endif  // BFIO_TESTS_UNIT_ROUTER_GROUP_BARRIER_GROUP_TEST_H_
