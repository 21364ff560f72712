#include "router/requests/resume_store.h"

#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"

namespace bfio::router {
namespace {

class ResumeStoreTest : public ::testing::Test {
 protected:
  // A resumable request ends and is kept for its client.
  void End(core::RequestId id) {
    store_.Retain(*table_.Add(id, {.request_id = absl::StrCat(id), .resumable = true}, nullptr, 0, now_),
                  Finish(), now_);
  }
  // Removes the requests whose clients have not come back, as the request lifecycle does.
  void Expire() {
    while (const auto id = store_.TakeExpired(table_, now_)) table_.Erase(*id);
  }

  const ResumeOptions options_;
  ResumeStore store_{options_};
  RequestTable table_;
  absl::Time now_ = absl::UnixEpoch();
};

TEST_F(ResumeStoreTest, NothingIsKeptOfExpiredRequests) {
  for (core::RequestId id = 1; id <= 3; ++id) {
    End(id);
    now_ += absl::Seconds(1);
  }
  Expire();
  EXPECT_EQ(store_.ended_entries(), 3u);
  now_ += options_.timeout - absl::Seconds(2);
  Expire();
  EXPECT_EQ(table_.size(), 1u);
  EXPECT_EQ(store_.ended_entries(), 1u);
  EXPECT_EQ(store_.TakeOldestEnded(table_), core::RequestId{3});
  End(4);
  now_ += options_.timeout;
  Expire();
  EXPECT_EQ(store_.ended_entries(), 0u);
  EXPECT_EQ(store_.next_deadline(), absl::InfiniteFuture());
}

}  // namespace
}  // namespace bfio::router
