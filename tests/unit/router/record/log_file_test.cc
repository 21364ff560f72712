// The decision log on disk: its size is bounded, it is readable after any end, and it endangers neither its
// reader nor its router.
#include <gmock/gmock.h>
#include <sys/stat.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <limits>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/base/rng.h"
#include "router/record/codec.h"
#include "router/record/log_reader.h"
#include "router/record/log_writer.h"
#include "router/record/segment_files.h"
#include "tests/testing/recorded_session.h"
#include "tools/sim/replay/session_replay.h"

namespace bfio::record {
namespace {

namespace fs = std::filesystem;
using ::bfio::testing::OneGroup;
using ::bfio::testing::RandomSession;
using ::bfio::testing::RecordedGroup;
using ::bfio::testing::RunRecorded;
using ::bfio::testing::SessionSetup;
using ::testing::AnyOf;
using ::testing::HasSubstr;

class LogFile : public ::testing::Test {
 protected:
  LogFile() : folder_(absl::StrCat(::testing::TempDir(), "bfio_log_", getpid())) {
    fs::remove_all(folder_);
    fs::create_directories(folder_);
  }
  ~LogFile() override { fs::remove_all(folder_); }

  std::string path() const { return folder_ + "/log"; }

  std::unique_ptr<LogWriter> Writer(int64_t bytes = 64 << 20) {
    auto writer = LogWriter::Open({path(), bytes});
    EXPECT_TRUE(writer.ok()) << writer.status();
    return *std::move(writer);
  }
  void WriteSession(uint64_t seed, int turns) { RunRecorded(SessionSetup(), seed, turns, Writer()); }
  int64_t BytesOnDisk() const {
    int64_t sum = 0;
    for (const SegmentFile& file : ListSegments(path())) sum += file.bytes;
    return sum;
  }
  static std::string Contents(const std::string& file) {
    std::ifstream in(file, std::ios::binary);
    return std::string(std::istreambuf_iterator<char>(in), {});
  }
  static void Put(const std::string& file, const std::string& bytes) {
    std::ofstream(file, std::ios::binary | std::ios::trunc) << bytes;
  }

  const std::string folder_;
};

struct Replayed {
  absl::Status status;
  LogReader::Ending ending = LogReader::Ending::kOpen;
  int64_t decisions = 0;
  bool failed = false;
  bool from_beginning = false;
  size_t segments = 0;
  int64_t earlier = 0;
};

double NoClock() {
  return 0;
}

Replayed ReplayLog(const std::string& path) {
  Replayed result;
  absl::StatusOr<LogReader> reader = LogReader::Open(path);
  result.status = reader.status();
  if (!reader.ok()) return result;
  sim::SessionReplay replay(std::nullopt, NoClock);
  v1::DecisionRecord record;
  for (;;) {
    const absl::StatusOr<bool> more = reader->Next(record);
    result.status = more.ok() && *more ? replay.Take(record) : more.status();
    if (!result.status.ok() || !*more) break;
  }
  result.ending = reader->ending();
  result.decisions = replay.counts().decisions;
  result.failed = replay.Failed();
  result.from_beginning = replay.from_beginning();
  result.segments = reader->segments();
  result.earlier = reader->earlier_sessions();
  return result;
}

TEST(LoggedRequestTest, KeepsObjectiveComputedTokensAndHeldRank) {
  core::RequestSpec spec = {.id = 9, .prefill_tokens = 10, .max_new_tokens = 1};
  const auto logged = [&] {
    v1::LoggedRequest to;
    ToLog(spec, 3, to);
    return to;
  };
  const auto read = [&] { return FromLog(logged(), 3).value(); };
  const auto refused = [](const v1::LoggedRequest& wrong) {
    return std::string(FromLog(wrong, 3).status().message());
  };
  for (const std::optional<double> objective_s : {std::optional<double>(), std::optional<double>(0.25)}) {
    spec.ttft_objective_s = objective_s;
    EXPECT_EQ(read().ttft_objective_s, objective_s);
  }
  for (const int64_t computed : {0, 9}) {
    spec.computed_tokens = computed;
    EXPECT_EQ(read().computed_tokens, computed);
  }
  using Held = std::optional<core::RequestSpec::HeldRank>;
  for (const Held& held_to : {Held(), Held({0, 0}), Held({3, 5})}) {
    spec.held_to = held_to;
    EXPECT_EQ(read().held_to, held_to);
  }
  v1::LoggedRequest wrong = logged();
  wrong.set_ttft_objective_s(-1);
  EXPECT_THAT(refused(wrong), HasSubstr("ttft_objective_s"));
  wrong = logged();
  wrong.set_held_group(-1);
  EXPECT_THAT(refused(wrong), HasSubstr("held_group"));
  for (const int64_t computed : {-1, 10}) {
    wrong = logged();
    wrong.set_computed_tokens(computed);
    EXPECT_THAT(refused(wrong), HasSubstr("computed_tokens")) << computed;
  }
}

TEST(LoggedRequestTest, KeepsThePromptsBlocks) {
  core::RequestSpec spec = {.id = 9, .prefill_tokens = 3 * core::kPrefixBlockTokens, .max_new_tokens = 1};
  v1::LoggedRequest logged;
  ToLog(spec, 3, logged);
  EXPECT_EQ(FromLog(logged, 3)->prefix, nullptr);
  spec.prefix = std::make_shared<const std::vector<uint64_t>>(std::vector<uint64_t>{5, ~uint64_t{0}, 0});
  logged.Clear();
  ToLog(spec, 3, logged);
  EXPECT_EQ(*FromLog(logged, 3)->prefix, *spec.prefix);
  logged.add_prefix(7);
  EXPECT_THAT(std::string(FromLog(logged, 3).status().message()), HasSubstr("prefix"))
      << "longer than the prompt";
}

// 2,048 long prompts' names would exceed a record's limit.
TEST(LoggedStateTest, HasNoNamesOfBlocks) {
  core::ClusterState state;
  core::RequestSpec spec = {.id = 9, .prefill_tokens = 3 * core::kPrefixBlockTokens, .max_new_tokens = 1};
  spec.prefix = std::make_shared<const std::vector<uint64_t>>(3, uint64_t{5});
  state.pool.waiting.push_back({spec, 1});
  state.groups.emplace_back().workers.emplace_back().residents.push_back({.spec = spec});
  int requests = 0;
  ToLog(state, 3, [&](const v1::DecisionRecord& part) {
    for (const v1::LoggedState::Waiting& waiting : part.state().waiting()) {
      ++requests;
      EXPECT_EQ(waiting.request().prefix_size(), 0);
    }
    for (const v1::LoggedState::Worker& worker : part.state().workers()) {
      requests += worker.residents_size();
      EXPECT_EQ(worker.residents(0).request().prefix_size(), 0);
    }
  });
  EXPECT_EQ(requests, 2);
}

TEST(LoggedReportTest, KeepsWhatWasCached) {
  const std::vector<core::CachedPrompt> cached = {{9, 0}, {12, 640}};
  const core::StepReport report = {.step = 4, .applied_plan = 3, .cached = cached};
  v1::LoggedReport logged;
  ToLog(1, report, false, 3, logged);
  OwnedReport read;
  ASSERT_TRUE(FromLog(logged, 3, read).ok());
  ASSERT_EQ(read.event.report.cached.size(), 2u);
  for (size_t i = 0; i < 2; ++i) {
    EXPECT_EQ(read.event.report.cached[i].id, cached[i].id);
    EXPECT_EQ(read.event.report.cached[i].tokens, cached[i].tokens);
  }
  logged.set_cached_tokens(0, -1);
  EXPECT_FALSE(FromLog(logged, 3, read).ok());
  logged.set_cached_tokens(0, 1);
  logged.add_cached_ids(1);
  EXPECT_FALSE(FromLog(logged, 3, read).ok()) << "an id without tokens";
}

TEST(LoggedEpochTest, KeepsPrefixCachesAndMembers) {
  std::vector<core::EpochMember> members(2);
  for (core::EpochMember& member : members) member.spec = {.slots = 1, .kv_tokens = 1};
  members[1].spec.prefix_cache = true;
  members[1].spec.member = 77;
  v1::LoggedEpoch logged;
  ToLog(members, 3, logged);
  const auto read = FromLog(logged, 3);
  ASSERT_TRUE(read.ok());
  EXPECT_FALSE((*read)[0].spec.prefix_cache);
  EXPECT_EQ((*read)[0].spec.member, 0u);
  EXPECT_TRUE((*read)[1].spec.prefix_cache);
  EXPECT_EQ((*read)[1].spec.member, 77u);
}

TEST(LoggedWorkerTimeTest, KeepsEveryTermOfTheCost) {
  const BatchCost cost = {
      .c_s = 0.02, .a_s_per_token = 1e-4, .b0_tokens = 16, .k1_s_per_pair = 3e-9, .k2_s_per_token = 1e-6};
  v1::LoggedWorkerTime logged;
  ToLog(cost, logged);
  const absl::StatusOr<core::SchedulerEvent> read = FromLog(logged);
  ASSERT_TRUE(read.ok()) << read.status();
  const auto* set = std::get_if<core::SetCost>(&*read);
  ASSERT_NE(set, nullptr);
  const BatchLoad load = {.tokens = 116, .prefill_pairs = 1e7, .decode_context = 1e4};
  EXPECT_EQ(set->cost.Seconds(load), cost.Seconds(load));
  EXPECT_EQ(set->cost.k1_s_per_pair, cost.k1_s_per_pair);
  for (const double bad : {-1.0, std::nan(""), std::numeric_limits<double>::infinity()}) {
    logged.mutable_cost()->set_k1_s_per_pair(bad);
    EXPECT_THAT(std::string(FromLog(logged).status().message()), HasSubstr("k1_s_per_pair")) << bad;
  }
  // Older logs do not have this field.
  logged.mutable_cost()->clear_k1_s_per_pair();
  const absl::StatusOr<core::SchedulerEvent> old = FromLog(logged);
  ASSERT_TRUE(old.ok()) << old.status();
  EXPECT_EQ(std::get<core::SetCost>(*old).cost.k1_s_per_pair, 0);
}

TEST_F(LogFile, AWrittenLogReplaysIdentically) {
  WriteSession(1, 500);
  const Replayed replayed = ReplayLog(path());
  EXPECT_TRUE(replayed.status.ok()) << replayed.status;
  EXPECT_EQ(replayed.ending, LogReader::Ending::kClosed);
  EXPECT_TRUE(replayed.from_beginning);
  EXPECT_FALSE(replayed.failed);
  EXPECT_GT(replayed.decisions, 100);
}

TEST_F(LogFile, TheBoundHoldsAndTheRemainingSegmentsReplay) {
  constexpr int64_t kBound = LogWriter::kMinBytes;
  std::unique_ptr<LogWriter> owned = Writer(kBound);
  LogWriter* const writer = owned.get();
  const SessionSetup setup;
  auto recorded = std::make_unique<RecordedGroup>(setup, std::move(owned));
  RandomSession<OneGroup> session(recorded->group, 7);
  uint64_t last = 0;
  for (int round = 0; round < 200 && last < 13; ++round) {
    for (int i = 0; i < 600; ++i) session.Iterate();
    recorded->recorder.Flush();
    const absl::Time give_up = absl::Now() + absl::Minutes(1);
    while (writer->backlog_bytes() > 0 && absl::Now() < give_up) absl::SleepFor(absl::Milliseconds(1));
    ASSERT_EQ(writer->backlog_bytes(), 0) << "the writer stands still";
    EXPECT_LE(BytesOnDisk(), kBound);
    last = ListSegments(path()).back().number;
  }
  recorded->recorder.Close();
  EXPECT_GE(last, 13u) << "the session was too short to turn the log over";
  EXPECT_LE(BytesOnDisk(), kBound);
  EXPECT_GT(BytesOnDisk(), kBound / 2);
  const Replayed replayed = ReplayLog(path());
  EXPECT_TRUE(replayed.status.ok()) << replayed.status;
  EXPECT_EQ(replayed.ending, LogReader::Ending::kClosed);
  EXPECT_FALSE(replayed.from_beginning);
  EXPECT_FALSE(replayed.failed);
  EXPECT_GE(replayed.segments, 4u);
}

TEST_F(LogFile, ARestartBeginsANewSessionAndTheLastOneIsRead) {
  WriteSession(1, 300);
  WriteSession(2, 100);
  const std::vector<SegmentFile> files = ListSegments(path());
  ASSERT_EQ(files.size(), 2u);
  const Replayed last = ReplayLog(path());
  EXPECT_EQ(last.earlier, 1);
  EXPECT_FALSE(last.failed);
  const Replayed first = ReplayLog(files[0].path);
  EXPECT_FALSE(first.failed);
  EXPECT_GT(first.decisions, last.decisions);
}

TEST_F(LogFile, ManyRestartsLeaveABoundedNumberOfFiles) {
  for (size_t i = 0; i < LogWriter::kMaxFiles + 10; ++i) WriteSession(i, 1);
  EXPECT_EQ(ListSegments(path()).size(), LogWriter::kMaxFiles);
}

TEST_F(LogFile, ATruncatedLogReplaysUpToTheCut) {
  WriteSession(3, 200);
  const std::string file = ListSegments(path())[0].path;
  const std::string whole = Contents(file);
  int64_t decisions = 0;
  for (size_t size = 0; size < whole.size(); size += 1 + whole.size() / 300) {
    Put(file, whole.substr(0, size));
    const Replayed replayed = ReplayLog(path());
    if (!replayed.status.ok()) {  // the cut is within the header
      EXPECT_LT(size, 200u);
      EXPECT_THAT(replayed.status.code(),
                  AnyOf(absl::StatusCode::kNotFound, absl::StatusCode::kInvalidArgument));
      continue;
    }
    EXPECT_THAT(replayed.ending, AnyOf(LogReader::Ending::kTruncated, LogReader::Ending::kNoEnd));
    EXPECT_FALSE(replayed.failed);
    EXPECT_GE(replayed.decisions, decisions);
    decisions = replayed.decisions;
  }
  EXPECT_GT(decisions, 50);
}

TEST_F(LogFile, AFlippedBitIsDetected) {
  WriteSession(3, 100);
  const std::string file = ListSegments(path())[0].path;
  const std::string whole = Contents(file);
  Rng rng(1);
  for (int i = 0; i < 300; ++i) {
    std::string damaged = whole;
    const size_t at = rng.Below(damaged.size());
    damaged[at] = static_cast<char>(damaged[at] ^ (1 << rng.Below(8)));
    Put(file, damaged);
    const Replayed replayed = ReplayLog(path());
    // A frame with too large a size looks like one that was cut off: the records in it that are whole are
    // still read and checked.
    EXPECT_TRUE(!replayed.status.ok() || replayed.ending == LogReader::Ending::kTruncated) << "byte " << at;
  }
}

// Payloads of the blocks of a segment.
std::vector<std::string> Payloads(const std::string& bytes) {
  std::vector<std::string> payloads;
  for (size_t at = kMagic.size(); at + kFrameBytes <= bytes.size();) {
    const size_t size = LittleEndian32(bytes.data() + at);
    payloads.push_back(bytes.substr(at + kFrameBytes, size));
    at += kFrameBytes + size;
  }
  return payloads;
}

TEST_F(LogFile, AForgedLogCausesNothingWorseThanAnError) {
  SessionSetup setup = {.policy = "bf_io", .lookahead = "hint"};
  setup.policy_options.horizon = 4;
  setup.policy_options.objective = "refill";
  RunRecorded(setup, 3, 60, Writer());
  const std::string file = ListSegments(path())[0].path;
  const std::vector<std::string> payloads = Payloads(Contents(file));
  ASSERT_FALSE(payloads.empty());
  Rng rng(2);
  int errors = 0;
  for (int i = 0; i < 600; ++i) {
    std::string forged(kMagic);
    const size_t victim = rng.Below(payloads.size());
    for (size_t p = 0; p < payloads.size(); ++p) {
      std::string payload = payloads[p];
      for (uint64_t n = p == victim ? 1 + rng.Below(3) : 0; n > 0; --n) {
        const size_t at = rng.Below(payload.size());
        switch (rng.Below(3)) {
          case 0:
            payload[at] = static_cast<char>(rng.Next());
            break;
          case 1:
            payload.erase(at, 1);
            break;
          default:
            payload.insert(at, 1, static_cast<char>(rng.Next()));
        }
        if (payload.empty()) payload = "x";
      }
      forged += Frame(payload) + payload;  // with a valid checksum
    }
    Put(file, forged);
    const Replayed replayed = ReplayLog(path());
    errors += !replayed.status.ok() || replayed.failed ? 1 : 0;
  }
  EXPECT_GT(errors, 200);
}

TEST_F(LogFile, SizesAreCheckedBeforeTheyAreUsed) {
  WriteSession(1, 5);
  const std::string file = ListSegments(path())[0].path;
  Put(file, std::string(kMagic) + std::string("\xff\xff\xff\xff\0\0\0\0", 8) + "abc");
  EXPECT_THAT(ReplayLog(path()).status.message(), HasSubstr("a block's size is 4294967295 bytes"));
  const std::string huge("\xff\xff\xff\x7f", 4);
  Put(file, std::string(kMagic) + Frame(huge) + huge);
  EXPECT_THAT(ReplayLog(path()).status.message(), HasSubstr("a record's size is 268435455 bytes"));
  Put(file, "something else entirely");
  EXPECT_THAT(ReplayLog(path()).status.message(), HasSubstr("is not a decision log"));
  Put(file, std::string(kMagic));
  EXPECT_EQ(ReplayLog(path()).status.code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(ReplayLog(folder_ + "/other").status.code(), absl::StatusCode::kNotFound);
}

TEST_F(LogFile, ALogOfAnOlderFormatIsRefusedInOneLine) {
  v1::DecisionRecord record;
  record.mutable_header()->set_format(1);
  record.mutable_header()->set_version("1.4.0");
  std::string header;
  ASSERT_TRUE(AppendRecord(record, header));
  const std::string file = SegmentPath(path(), 1);
  Put(file, std::string(kMagic) + Frame(header) + header);
  const absl::Status status = ReplayLog(path()).status;
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(status.message(), file +
                                  ": decision log format 1, written by version '1.4.0'; this program "
                                  "reads format 2");
}

TEST_F(LogFile, DamageInOtherSessionsDoesNotPreventAReplay) {
  WriteSession(1, 300);
  WriteSession(2, 100);
  const std::vector<SegmentFile> files = ListSegments(path());
  ASSERT_EQ(files.size(), 2u);
  const std::string older = Contents(files[0].path);
  Put(files[0].path, std::string(1000, '\0'));
  const Replayed last = ReplayLog(path());
  EXPECT_TRUE(last.status.ok()) << last.status;
  EXPECT_GT(last.decisions, 0);
  EXPECT_FALSE(ReplayLog(files[0].path).status.ok());
  Put(files[0].path, older);
  Put(files[1].path, std::string(1000, '\0'));
  EXPECT_FALSE(ReplayLog(path()).status.ok()) << "the last session is the one that was asked for";
  EXPECT_TRUE(ReplayLog(files[0].path).status.ok());
}

// --- a failing log must not affect its router ---

// A session that is recorded to `writer`.
struct Session {
  explicit Session(std::unique_ptr<LogWriter> owned)
      : writer(owned.get()), recorded({.policy = "lpt"}, std::move(owned)), session(recorded.group, 1) {}

  // Takes random turns until recording has stopped. Returns false if it still runs after `turns`.
  bool RunUntilStopped(int turns) {
    for (int i = 0; i < turns; ++i) {
      session.Iterate();
      recorded.recorder.Flush();
      if (recorded.recorder.stopped()) return true;
      if (i % 64 == 0) absl::SleepFor(absl::Milliseconds(1));
    }
    return false;
  }

  LogWriter* const writer;
  RecordedGroup recorded;
  RandomSession<OneGroup> session;
};

TEST_F(LogFile, AFullDiskStopsOnlyTheLog) {
  if (!fs::exists("/dev/full")) GTEST_SKIP() << "no /dev/full";
  auto writer = LogWriter::Open({"/dev/full", 64 << 20});
  ASSERT_TRUE(writer.ok()) << writer.status();
  Session session(*std::move(writer));
  EXPECT_TRUE(session.RunUntilStopped(100'000));
  const int64_t plans = session.recorded.group.totals().plans;
  for (int i = 0; i < 200; ++i) session.session.Iterate();
  EXPECT_GT(session.recorded.group.totals().plans, plans);
}

TEST_F(LogFile, ARemovedFolderStopsOnlyTheLog) {
  Session session(Writer(LogWriter::kMinBytes));
  for (int i = 0; i < 50; ++i) session.session.Iterate();
  fs::remove_all(folder_);
  EXPECT_TRUE(session.RunUntilStopped(100'000));
}

TEST_F(LogFile, AHangingDiskStopsOnlyTheLog) {
  // A pipe that is not read, so that writes block.
  ASSERT_EQ(mkfifo(path().c_str(), 0600), 0);
  std::fstream reader(path());  // opened for reading and writing, so that open does not wait
  const absl::Time start = absl::Now();
  {
    Session session(Writer(LogWriter::kMinBytes));
    EXPECT_TRUE(session.RunUntilStopped(1'000'000));
  }
  EXPECT_LT(absl::Now() - start, absl::Minutes(1)) << "a net under a hang, not a bound";
}

TEST_F(LogFile, AnUnusablePathOrBoundIsRefusedAtOnce) {
  EXPECT_EQ(LogWriter::Open({folder_ + "/no/such/folder/log", 64 << 20}).status().code(),
            absl::StatusCode::kNotFound);
  EXPECT_THAT(LogWriter::Open({path(), 1000}).status().message(), HasSubstr("must be at least 1048576"));
}

}  // namespace
}  // namespace bfio::record
