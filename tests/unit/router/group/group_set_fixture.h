// Fixture for tests of several groups in one router.
//
// Purpose: workers join, form groups and step in a GroupWorld, which checks that no rule of the protocol is
// broken. Threads: one.
#ifndef BFIO_TESTS_UNIT_ROUTER_GROUP_GROUP_SET_FIXTURE_H_
#define BFIO_TESTS_UNIT_ROUTER_GROUP_GROUP_SET_FIXTURE_H_

#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/group_world.h"

namespace bfio::router {

class GroupSetTest : public ::testing::Test {
 protected:
  GroupSetTest() : GroupSetTest(2) {}
  explicit GroupSetTest(int32_t groups) : GroupSetTest(Options(groups)) {}
  explicit GroupSetTest(const GroupSetOptions& options) : world_(options) {}
  void TearDown() override { EXPECT_THAT(world_.broken(), ::testing::IsEmpty()); }

  static GroupSetOptions Options(int32_t groups) {
    GroupSetOptions options;
    options.group.workers = 2;
    options.groups = groups;
    return options;
  }
  void Submit(core::RequestId first, core::RequestId last, uint32_t max_new = 20) {
    for (core::RequestId id = first; id <= last; ++id)
      ASSERT_TRUE(world_.book().Submit(id, 10, max_new).ok());
    world_.Decide();
  }
  void JoinGroup(const std::string& name, const std::string& group) {
    world_.Worker(name).group = group;
    world_.Join(name);
  }
  // Name of the group that the worker is in; empty if none.
  std::string GroupOf(const std::string& name) {
    for (const auto& group : world_.groups().groups()) {
      if (group->FindWorker(name)) return group->options().name;
    }
    return "";
  }
  // Reads messages and advances the time until all groups with members serve.
  void Form() {
    for (int i = 0; i < 100; ++i) {
      world_.ReadAll();
      if (world_.AllServe()) return;
      world_.Wait();
    }
    FAIL() << "the groups do not form";
  }

  GroupWorld world_;
};

}  // namespace bfio::router

#endif  // BFIO_TESTS_UNIT_ROUTER_GROUP_GROUP_SET_FIXTURE_H_
