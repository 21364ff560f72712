// Fixture for tests of groups: a world (tests/testing/world.h) whose verbs are the tests' own.
#pragma once

#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/world.h"

namespace bfio::router {

class GroupTest : public ::testing::Test, protected World {
 protected:
  static constexpr absl::Duration kMs = absl::Milliseconds(1);

  GroupTest() : GroupTest(With(2)) {}
  explicit GroupTest(const WorldOptions& options) : World(options) {}
  void TearDown() override { EXPECT_THAT(broken, ::testing::IsEmpty()); }

  static WorldOptions With(int32_t workers, int32_t groups = 1) {
    WorldOptions options;
    options.groups.group.workers = workers;
    options.groups.groups = groups;
    return options;
  }
  const GroupOptions& Options() { return options().groups.group; }
  // Another world, without workers and requests.
  void Begin(const WorldOptions& next) {
    workers.clear();
    clients.clear();
    lost.clear();
    died_with.clear();
    options() = next;
    Start();
  }
  // These workers serve in a group, and have taken `steps` steps with requests 1, 2, ...
  void BeginWith(const std::vector<std::string>& names, core::RequestId requests = 0, int steps = 0) {
    Begin(With(static_cast<int32_t>(names.size())));
    ASSERT_TRUE(Serve(names));
    ASSERT_EQ(Ranks(), names);
    if (requests > 0) Submit(1, requests);
    Steps(steps);
  }
  // The ranks of the next epoch.
  std::vector<std::string> Formed() {
    EXPECT_TRUE(Form());
    return Ranks();
  }
  MemberId MemberOf(const std::string& name) { return Worker(name).member; }
  std::string Refusal() const { return closed.empty() ? "" : closed.back().status.ToString(); }
  int64_t Generated() { return group().steps().totals().generated_tokens; }
};

// Two groups of two workers.
class GroupSetTest : public GroupTest {
 protected:
  GroupSetTest() : GroupSetTest(With(2, 2)) {}
  explicit GroupSetTest(const WorldOptions& options) : GroupTest(options) {}

  void JoinModel(const std::string& name, const std::string& model, const std::string& barrier = "star") {
    Worker(name).model = model;
    Worker(name).barrier = barrier;
    Join(name);
  }
  // Names of all ranks that serve, sorted.
  std::vector<std::string> Serving() {
    std::vector<std::string> names;
    for (size_t i = 0; i < groups().groups().size(); ++i) {
      for (const std::string& name : Ranks(i)) names.push_back(name);
    }
    std::sort(names.begin(), names.end());
    return names;
  }
  // Advances the time by ten seconds; the workers read all messages.
  void Settle() {
    for (int i = 0; i < 200; ++i) {
      ReadAll();
      Advance(absl::Milliseconds(50));
    }
  }
  // Every group steps.
  void StepAll(int count) {
    for (int i = 0; i < count; ++i) {
      ReadAll();
      for (auto& [name, worker] : workers) {
        if (worker.epoch && worker.epoch->rank == 0) Step(name);
      }
    }
  }
  // Workers name so many groups that those without members have to make way.
  void FillGroups() {
    for (auto i = static_cast<int32_t>(groups().groups().size()); i < GroupSet::kMaxGroups; ++i)
      Join(absl::StrCat("w", i), absl::StrCat("g", i));
  }
};

}  // namespace bfio::router
