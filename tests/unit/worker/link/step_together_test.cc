// The step loop where ranks' engines depend on each other: steps of the whole group, and failing engines.
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "common/base/mutex.h"
#include "gmock/gmock.h"
#include "worker/barrier/local/local_barrier.h"
#include "worker/barrier/step_peers.h"
#include "worker/barrier/view.h"
#include "worker/link/step_loop.h"

namespace bfio::worker {
namespace {

using ::testing::HasSubstr;

constexpr absl::Duration kGroupForever = absl::Seconds(60);

// Keeps messages of one kind. Threads: any.
template <typename T>
class Channel {
 public:
  void Put(T message) {
    MutexLock lock(&mutex_);
    messages_.push_back(std::move(message));
  }
  T Next() {
    MutexLock lock(&mutex_);
    const auto some = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return !messages_.empty(); };
    if (!mutex_.AwaitWithTimeout(absl::Condition(&some), kGroupForever)) {
      ADD_FAILURE() << "no message came";
      return T();
    }
    T message = std::move(messages_.front());
    messages_.pop_front();
    return message;
  }

 private:
  Mutex mutex_;
  std::deque<T> messages_ ABSL_GUARDED_BY(mutex_);
};

class Link final : public StepLink {
 public:
  void Send(uint64_t, OutMessage message) override {
    if (auto* hello = std::get_if<Hello>(&message)) hellos.Put(*std::move(hello));
    if (auto* ready = std::get_if<EpochReady>(&message)) readies.Put(*std::move(ready));
    if (auto* report = std::get_if<StepReport>(&message)) reports.Put(*std::move(report));
    if (auto* part = std::get_if<Announcement>(&message)) announcements.Put(*std::move(part));
  }

  Channel<Hello> hellos;
  Channel<EpochReady> readies;
  Channel<StepReport> reports;
  Channel<Announcement> announcements;
};

// An engine that generates token 100 x rank + step in every step; with `together` it gathers all ranks'
// tokens first.
class ToyEngine final : public Engine {
 public:
  struct Shape {
    int rank = 0;
    bool together = false;
    uint64_t signature = 0;
    // The step that fails; 0: none.
    int fails_at = 0;
    // The step before which it preempts a request, and the request; 0: none.
    int takes_out_at = 0;
    Handle takes_out = 0;
    // The number of rows that it reports; 0: three plus its rank.
    int64_t rows = 0;
    // The most rows that it reports to a group that forms; 0: 50 plus its rank.
    int64_t most_rows = 0;
    // The most rows of a group for which its memory suffices.
    int64_t fits_rows = INT64_MAX;
    std::function<void()> before_step = [] {};
    absl::Status enters;
  };
  explicit ToyEngine(Shape shape) : shape_(std::move(shape)) {}

  absl::string_view name() const override { return "toy"; }
  const EngineLimits& limits() const override { return limits_; }
  absl::Status Admit(const SequenceRequest&) override { return absl::OkStatus(); }
  bool Cancel(Handle) override { return false; }
  absl::Status Step(StepOutput& out) override {
    if (step_ + 1 == shape_.fails_at) return absl::InternalError("the toy is broken");
    return Take(out);
  }
  bool together() const override { return shape_.together; }
  uint64_t signature() const override { return shape_.signature; }
  int64_t most_rows() const override { return shape_.most_rows != 0 ? shape_.most_rows : 50 + shape_.rank; }
  absl::Status EnterGroup(const StepPeers& peers) override {
    if (peers.rows() > shape_.fits_rows) return absl::ResourceExhaustedError("no memory for these rows");
    entered_for.push_back(peers.rows());
    return shape_.enters;
  }
  int64_t NextRows() override {
    taken_out_.clear();
    if (step_ + 1 == shape_.takes_out_at) taken_out_.push_back(shape_.takes_out);
    return shape_.rows != 0 ? shape_.rows : 3 + shape_.rank;
  }
  absl::Span<const Handle> taken_out() const override { return taken_out_; }
  absl::Status StepTogether(StepPeers& peers, StepOutput& out) override {
    shape_.before_step();
    out.Clear();
    if (step_ + 1 == shape_.fails_at) return absl::InternalError("the toy is broken");
    rows_seen = peers.rows();
    const std::vector<float> mine = {static_cast<float>(Token())};
    std::vector<float> all(static_cast<size_t>(peers.world_size()));
    if (absl::Status status = peers.AllGather(mine, absl::MakeSpan(all)); !status.ok()) return status;
    for (size_t rank = 0; rank < all.size(); ++rank) {
      EXPECT_EQ(all[rank], static_cast<float>(100 * static_cast<int>(rank) + step_ + 1));
    }
    return Take(out);
  }
  int32_t active() const override { return 1; }
  int32_t free_slots() const override { return 7; }
  int64_t free_kv_tokens() const override { return 70; }
  std::vector<ResidentSequence> resident() const override { return {}; }

  int64_t rows_seen = 0;
  // Rows that EnterGroup was called with, by epoch.
  std::vector<int64_t> entered_for;

 private:
  uint32_t Token() const { return static_cast<uint32_t>(100 * shape_.rank + step_ + 1); }
  absl::Status Take(StepOutput& out) {
    out.Clear();
    out.tokens.push_back({1, Token()});
    ++step_;
    return absl::OkStatus();
  }

  const Shape shape_;
  const EngineLimits limits_ = {8, 80, 10};
  int step_ = 0;
  std::vector<Handle> taken_out_;
};

struct Rank {
  Link link;
  ToyEngine* engine = nullptr;
  std::unique_ptr<StepLoop> loop;
  std::thread thread;
  absl::Status ended;
};

class StepTogetherTest : public ::testing::Test {
 protected:
  void Add(ToyEngine::Shape shape) {
    auto rank = std::make_unique<Rank>();
    shape.rank = static_cast<int>(ranks_.size());
    auto engine = std::make_unique<ToyEngine>(shape);
    rank->engine = engine.get();
    StepLoopOptions options = {.worker_id = absl::StrCat("w", shape.rank), .resume_buffer_bytes = 1 << 20};
    rank->loop = std::make_unique<StepLoop>(options, std::move(engine),
                                            std::make_unique<LocalBarrierEndpoint>(hub_), rank->link);
    rank->thread = std::thread([r = rank.get()] { r->ended = r->loop->Run(); });
    rank->loop->inbox().OnStreamUp(1);
    hellos_.push_back(rank->link.hellos.Next());
    ranks_.push_back(std::move(rank));
  }
  // Opens an epoch of the first `count` ranks and sends each a plan; rank 0 begins the requests `begins`.
  // Returns the ranks' errors of forming.
  std::vector<std::string> Open(uint64_t epoch, int count, const std::vector<Handle>& begins = {}) {
    for (int rank = 0; rank < count; ++rank) {
      Epoch message = {.group = {epoch, rank, count, hellos_[0].communicator_offer}};
      message.form_timeout = message.step_timeout = kGroupForever;
      message.announce = epoch > 1;
      message.retain = kGroupForever;
      ranks_[rank]->loop->inbox().OnEpoch(message);
    }
    std::vector<std::string> errors;
    for (int rank = 0; rank < count; ++rank) {
      errors.push_back(ranks_[rank]->link.readies.Next().error);
      Plan plan = {.epoch = epoch, .apply_step = 1};
      for (const Handle handle : begins) {
        if (rank != 0) break;
        SequenceRequest& request = plan.assignments.emplace_back();
        request.handle = handle;
        request.prompt_length = 2;
        request.max_new_tokens = 5;
        plan.notes.push_back({"whose it is", {}});
      }
      ranks_[rank]->loop->inbox().OnPlan(plan);
    }
    return errors;
  }
  StepReport Report(int rank) { return ranks_[rank]->link.reports.Next(); }
  void TearDown() override {
    for (auto& rank : ranks_) rank->loop->inbox().OnShutdown("test is over");
    for (auto& rank : ranks_) rank->thread.join();
  }

  std::shared_ptr<LocalHub> hub_ = std::make_shared<LocalHub>();
  std::vector<std::unique_ptr<Rank>> ranks_;
  std::vector<Hello> hellos_;
};

TEST_F(StepTogetherTest, RanksAgreeOnTheLargestBatchAndExchangeInAStep) {
  for (int i = 0; i < 3; ++i) Add({.together = true, .signature = 5});
  EXPECT_EQ(hellos_[0].barrier, "local+tp:5");
  for (const std::string& error : Open(1, 3)) EXPECT_EQ(error, "");
  for (int step = 1; step <= 5; ++step) {
    for (int rank = 0; rank < 3; ++rank) {
      const StepReport report = Report(rank);
      EXPECT_EQ(report.barrier_error, "");
      ASSERT_EQ(report.output.tokens.size(), 1u);
      EXPECT_EQ(report.output.tokens[0].id, static_cast<uint32_t>(100 * rank + step));
      EXPECT_GE(report.local_ns, 0);
      EXPECT_GT(report.barrier_wait_ns, 0);
    }
  }
  TearDown();
  for (auto& rank : ranks_) {
    EXPECT_EQ(rank->engine->rows_seen, 5);
    EXPECT_EQ(rank->engine->entered_for, std::vector<int64_t>{52}) << "the largest that a batch may be";
  }
  ranks_.clear();
}

TEST_F(StepTogetherTest, AnEngineThatCannotEnterAGroupEndsItsRank) {
  const absl::Status status = absl::UnavailableError("the device is gone");
  Add({.together = true, .signature = 5, .enters = status});
  Epoch message = {.group = {1, 0, 1, hellos_[0].communicator_offer}};
  message.form_timeout = message.step_timeout = kGroupForever;
  ranks_[0]->loop->inbox().OnEpoch(message);
  ranks_[0]->thread.join();
  EXPECT_EQ(ranks_[0]->ended, status);
  ranks_.clear();
}

// The largest number of rows that a peer may have becomes the size of all ranks' buffers.
TEST_F(StepTogetherTest, AGroupWithMoreRowsThanAnyEngineHasDoesNotForm) {
  for (const int64_t rows : {int64_t{1} << 40, INT64_MAX}) {
    SCOPED_TRACE(rows);
    Add({.together = true});
    Add({.together = true, .most_rows = rows});
    for (const std::string& error : Open(1, 2))
      EXPECT_THAT(error, HasSubstr(absl::StrCat("a rank reported an invalid number of tokens, ", rows)));
    EXPECT_EQ(Open(2, 1), std::vector<std::string>{""});
    EXPECT_EQ(Report(0).output.tokens.size(), 1u);
    TearDown();
    EXPECT_EQ(ranks_[0]->engine->entered_for, std::vector<int64_t>{50});
    for (auto& rank : ranks_) EXPECT_TRUE(rank->ended.ok()) << rank->ended;
    ranks_.clear();
    hellos_.clear();
  }
}

TEST_F(StepTogetherTest, ARankWhoseMemoryIsTooSmallForAGroupWaitsForAnother) {
  Add({.together = true, .fits_rows = 51});
  Add({.together = true});
  Add({.together = true});
  const std::vector<std::string> errors = Open(1, 3);
  EXPECT_THAT(errors[0], HasSubstr("3 ranks with up to 52 rows per step each; this rank has up to 50"));
  EXPECT_THAT(errors[0], HasSubstr("no memory for these rows"));
  EXPECT_EQ(errors[1], "");
  for (const std::string& error : Open(2, 2)) EXPECT_EQ(error, "");
  EXPECT_EQ(Report(0).output.tokens.size(), 1u);
  TearDown();
  EXPECT_EQ(ranks_[0]->engine->entered_for, std::vector<int64_t>{51});
  EXPECT_TRUE(ranks_[0]->ended.ok()) << ranks_[0]->ended;
  ranks_.clear();
}

// Called before each step of an engine: blocks before the third until the test lets it continue.
struct StopInStepThree {
  absl::Notification in_step, go_on;
  int steps = 0;
  void operator()() {
    if (++steps != 3) return;
    in_step.Notify();
    go_on.WaitForNotification();
  }
};

TEST_F(StepTogetherTest, AStepThatAPeerLeavesHasNoTokensAndIsRepeated) {
  StopInStepThree stop;
  for (int i = 0; i < 2; ++i) Add({.together = true});
  Add({.together = true, .before_step = [&] { stop(); }});
  Open(1, 3);
  for (int step = 1; step <= 2; ++step) {
    for (int rank = 0; rank < 3; ++rank) EXPECT_EQ(Report(rank).output.tokens.size(), 1u);
  }
  stop.in_step.WaitForNotification();
  // All ranks are in step 3; the last rank will find its barrier aborted.
  ranks_[2]->loop->inbox().OnShutdown("it ends");
  stop.go_on.Notify();
  for (int rank = 0; rank < 2; ++rank) {
    const StepReport report = Report(rank);
    EXPECT_EQ(report.step, 3);
    EXPECT_NE(report.barrier_error, "");
    EXPECT_TRUE(report.output.tokens.empty());
  }
  for (const std::string& error : Open(2, 2)) EXPECT_EQ(error, "");
  for (int rank = 0; rank < 2; ++rank) {
    const StepReport report = Report(rank);
    EXPECT_EQ(report.step, 1);
    ASSERT_EQ(report.output.tokens.size(), 1u);
    EXPECT_EQ(report.output.tokens[0].id, static_cast<uint32_t>(100 * rank + 3)) << "the same step again";
  }
}

// A request that an engine preempted for lack of KV is gone even if the step fails for which it was
// preempted: it must not be announced to the next router as running here.
TEST_F(StepTogetherTest, APreemptedRequestOfAFailedStepIsNotAnnounced) {
  StopInStepThree stop;
  Add({.together = true, .takes_out_at = 3, .takes_out = 11});
  Add({.together = true});
  Add({.together = true, .before_step = [&] { stop(); }});
  Open(1, 3, {11, 12});
  for (int step = 1; step <= 2; ++step) {
    for (int rank = 0; rank < 3; ++rank) Report(rank);
  }
  stop.in_step.WaitForNotification();
  ranks_[2]->loop->inbox().OnShutdown("it ends");
  stop.go_on.Notify();
  for (int rank = 0; rank < 2; ++rank) EXPECT_NE(Report(rank).barrier_error, "");
  for (const std::string& error : Open(2, 2)) EXPECT_EQ(error, "");
  const Announcement held = ranks_[0]->link.announcements.Next();
  ASSERT_EQ(held.requests.size(), 1u);
  EXPECT_EQ(held.requests[0].request.handle, 12u);
}

TEST_F(StepTogetherTest, RanksWithDifferentSignaturesDoNotForm) {
  Add({.together = true, .signature = 5});
  Add({.together = true, .signature = 6});
  for (const std::string& error : Open(1, 2)) {
    EXPECT_THAT(error, HasSubstr("--mlp and --model must be the same on all ranks"));
  }
}

// The number of rows that a peer reports becomes the size of all ranks' buffers.
TEST_F(StepTogetherTest, ABatchBeyondAnyEngineEndsTheEpochButNoRequest) {
  for (const int64_t rows : {int64_t{1} << 40, INT64_MAX}) {
    SCOPED_TRACE(rows);
    Add({.together = true});
    Add({.together = true, .rows = rows});
    Open(1, 2);
    const StepReport report = Report(0);
    EXPECT_THAT(report.barrier_error, HasSubstr("a rank reported an invalid number of tokens"));
    EXPECT_TRUE(report.output.tokens.empty());
    TearDown();
    EXPECT_TRUE(ranks_[0]->ended.ok()) << ranks_[0]->ended;
    EXPECT_EQ(ranks_[0]->engine->rows_seen, 0);
    ranks_.clear();
    hellos_.clear();
  }
}

TEST(GroupView, SumsOverPeersSaturate) {
  GroupView sum = ViewOf({.load_tokens = 5, .local_ns = -5, .active = 1});
  for (int i = 0; i < 3; ++i) {
    Fold(ViewOf({.load_tokens = INT64_MAX, .local_ns = INT64_MIN, .active = INT64_MAX}), sum);
  }
  EXPECT_EQ(sum.sum_load_tokens, INT64_MAX);
  EXPECT_EQ(sum.sum_local_ns, INT64_MIN);
  EXPECT_EQ(sum.sum_active, INT64_MAX);
}

TEST_F(StepTogetherTest, AFailedEngineEndsTheEpochForAllInTheSameStep) {
  for (const bool together : {false, true}) {
    SCOPED_TRACE(together);
    Add({.together = together});
    Add({.together = together, .fails_at = 2});
    Add({.together = together});
    Open(1, 3);
    for (int rank = 0; rank < 3; ++rank) EXPECT_EQ(Report(rank).barrier_error, "");
    for (const int rank : {0, 2}) {
      const StepReport report = Report(rank);
      EXPECT_EQ(report.step, 2);
      if (together) {
        EXPECT_NE(report.barrier_error, "");
        EXPECT_TRUE(report.output.tokens.empty()) << "the step needed the rank that failed";
      } else {
        EXPECT_THAT(report.barrier_error, HasSubstr("the engine of a rank has failed"));
        EXPECT_EQ(report.output.tokens.size(), 1u);
        EXPECT_EQ(report.group.stop_flags, kStopEngineFailed);
      }
    }
    TearDown();
    EXPECT_THAT(std::string(ranks_[1]->ended.message()), HasSubstr("the toy is broken"));
    ranks_.clear();
    hellos_.clear();
  }
}

}  // namespace
}  // namespace bfio::worker
