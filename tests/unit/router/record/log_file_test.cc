// The decision log on disk: its size is bounded, it is readable after any end, and it endangers neither its
// reader nor its router.
#include <gmock/gmock.h>
#include <sys/stat.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <limits>

#include "absl/time/clock.h"
#include "common/base/rng.h"
#include "router/record/codec.h"
#include "router/record/log_format.h"
#include "router/record/log_reader.h"
#include "router/record/log_writer.h"
#include "tests/testing/recorded_session.h"
#include "tests/testing/temp_folder.h"
#include "tools/sim/replay/session_replay.h"

namespace bfio::record {
namespace {

namespace fs = std::filesystem;
using ::bfio::testing::RecordedSession;
using ::bfio::testing::RunRecorded;
using ::bfio::testing::SessionSetup;
using ::bfio::testing::TempFolder;
using ::testing::AnyOf;
using ::testing::HasSubstr;

class LogFile : public ::testing::Test {
 protected:
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

  const TempFolder files_;
  const std::string folder_ = files_.path();
};

struct Replayed {
  absl::Status status;
  LogReader::Ending ending = LogReader::Ending::kOpen;
  int64_t decisions = 0;
  bool failed = false;
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
  Record record;
  for (;;) {
    const absl::StatusOr<bool> more = reader->Next(record);
    result.status = more.ok() && *more ? replay.Take(record) : more.status();
    if (!result.status.ok() || !*more) break;
  }
  result.ending = reader->ending();
  result.decisions = replay.counts().decisions;
  result.failed = replay.Failed();
  result.earlier = reader->earlier_sessions();
  return result;
}

// The event as a log gives it back.
absl::StatusOr<LoggedEvent> Reread(const core::SchedulerEvent& event, const core::Outcome& outcome = {}) {
  std::string bytes;
  Encode(event, outcome, {}, 3, true, bytes);
  absl::StatusOr<Record> record = Decode(bytes, 3);
  if (!record.ok()) return record.status();
  return std::get<LoggedEvent>(*std::move(record));
}

std::string Bytes(const LoggedEvent& logged) {
  std::string bytes;
  Encode(logged.event, logged.outcome, logged.times, 3, true, bytes);
  return bytes;
}

std::string Refusal(const core::SchedulerEvent& event) {
  return std::string(Reread(event).status().message());
}

core::RequestSpec AnyRequest() {
  core::RequestSpec spec = {.id = ~uint64_t{0},
                            .prefill_tokens = 3 * core::kPrefixBlockTokens,
                            .computed_tokens = 9,
                            .max_new_tokens = 1,
                            .predicted_output_tokens = 0,
                            .priority = -4,
                            .tenant = ~uint32_t{0},
                            .seniority = -2,
                            .ttft_objective_s = 0.1,
                            .held_to = core::RequestSpec::HeldRank{3, 0}};
  spec.prefix = std::make_shared<const std::vector<uint64_t>>(std::vector<uint64_t>{5, ~uint64_t{0}, 0});
  return spec;
}

// Every kind of event and outcome of random sessions: what was read, written again, is the same.
TEST(LogCodec, RereadRecordsAreTheSame) {
  core::Plan plan = {.apply_step = 7, .apply_steps = {0, 9}, .placements = {{8, 1, 40}}, .drops = {{2, 0}}};
  plan.level_s = 0.0;
  const BatchCost cost = {.c_s = 0.02, .a_s_per_token = 1e-4, .b0_tokens = 16, .k1_s_per_pair = 3e-9};
  core::OpenEpoch epoch{4, std::vector<core::EpochMember>(2), 6};
  for (core::EpochMember& member : epoch.members) member.spec = {.slots = 1, .kv_tokens = 1};
  epoch.members[1] = {{.slots = 2, .kv_tokens = 9, .prefix_cache = true, .member = 77, .cost = cost},
                      {{5, 6}},
                      {AnyRequest()}};
  core::Outcome made = {.plan = plan, .policy_called = true, .stopped_early = true};
  made.rule = core::PlacementRule::kCounts;
  const std::vector<core::RequestId> finished = {9, 3, 900};
  const std::vector<core::CachedPrompt> cached = {{9, 0}, {12, 640}};
  const std::vector<core::CompletionHint> hints = {{9, 0.25f}, {4, 0.1}};
  core::StepReport report = {
      .step = 4, .applied_plan = 6, .load_tokens = -5, .finished = finished, .hints = hints};
  report.cached = cached;
  const std::vector<core::PrefixChange> changes = {{~uint64_t{0}, true}, {7, false}};
  report.cache_changes = changes;
  report.prefill = core::PrefillReport{.token_budget = 0, .prompts = {{9, 77}}, .metered = true};
  const std::pair<core::SchedulerEvent, core::Outcome> events[] = {
      {core::AddGroup{1, core::GroupKind::kCoupled}, {.status = absl::InvalidArgumentError("")}},
      {core::RemoveGroup{1}, {.displaced = {7, 8}}},
      {core::Enqueue{AnyRequest()}, {.status = absl::ResourceExhaustedError("full")}},
      {core::Requeue{AnyRequest()}, {}},
      {core::Report{0, 2, report}, {}},
      {core::Cancel{9}, {.cancel = core::CancelOutcome::kDropped}},
      {epoch, {.displaced = {1}}},
      {core::CloseEpoch{2}, {}},
      {core::SetAcceptsNew{1, 2, false}, {}},
      {core::SetTime{1, 2, 1.5, -3}, {}},
      {core::SetServiceTime{1, 2, 1.0 / 3}, {}},
      {core::SetCost{1, 2, cost, {true, 256, 3e-3, 6e-3}}, {}},
      {core::MakePlan{3, true}, made},
      {core::SetPolicy{{"bf_io", {.seed = ~uint64_t{0}, .discount = 0.9}}}, {}},
  };
  for (const auto& [event, outcome] : events) {
    SCOPED_TRACE(EventName(event));
    const absl::StatusOr<LoggedEvent> read = Reread(event, outcome);
    ASSERT_TRUE(read.ok()) << read.status();
    EXPECT_EQ(Bytes(*read), Bytes({event, outcome}));
    EXPECT_EQ(OutcomeBytes(read->outcome), OutcomeBytes(outcome));
    EXPECT_EQ(ToJson(*read), ToJson(LoggedEvent{event, outcome}));
  }
  EXPECT_EQ(
      ToJson(*Reread(core::Enqueue{AnyRequest()})),
      R"({"record":"enqueue","id":18446744073709551615,"prefill_tokens":192,"computed_tokens":9,)"
      R"("max_new_tokens":1,"predicted_output_tokens":0,"priority":-4,"tenant":4294967295,"seniority":-2,)"
      R"("ttft_objective_s":0.10000000000000001,"held_to":{"group":3},"prefix":[5,18446744073709551615,0]})");
  EXPECT_EQ(
      ToJson(*Reread(core::Report{0, 2, report})),
      R"({"record":"report","worker":2,"step":4,"applied_behind":-2,"load_tokens":-5,"finished":[9,3,900],)"
      R"("prefill":{"prompts":[{"id":9,"tokens":77}],"metered":1},"cached":[{"id":9},{"id":12,"tokens":640}],)"
      R"("hints":[{"id":9,"probability":0.25},{"id":4,"probability":0.10000000000000001}],)"
      R"("cache_changes":[{"block":18446744073709551615,"stored":1},{"block":7}]})");
  EXPECT_EQ(
      ToJson(*Reread(core::MakePlan{3, true}, made)),
      "{\"record\":\"make_plan\",\"group\":3,\"force\":1,\"plan\":{\"apply_step\":7,\"apply_steps\":[0,9],"
      "\"placements\":[{\"id\":8,\"worker\":1,\"wait_steps\":40}],\"drops\":[{\"id\":2}],\"level_s\":0},"
      "\"policy_called\":1,\"stopped_early\":1,\"placement_rule\":3}");
}

TEST(LogCodec, ImpossibleValuesAreRefusedByName) {
  const auto refusal = [](void (*change)(core::RequestSpec&)) {
    core::RequestSpec spec = AnyRequest();
    change(spec);
    return Refusal(core::Enqueue{spec});
  };
  EXPECT_THAT(refusal([](auto& spec) { spec.prefill_tokens = 0; }),
              HasSubstr("prefill_tokens 0 is outside 1.."));
  EXPECT_THAT(refusal([](auto& spec) { spec.computed_tokens = spec.prefill_tokens; }),
              HasSubstr("computed_tokens"));
  EXPECT_THAT(refusal([](auto& spec) { spec.prefill_tokens -= 1; }), HasSubstr("prefix 3 is outside"))
      << "longer than the prompt";
  EXPECT_THAT(refusal([](auto& spec) { spec.ttft_objective_s = -1; }), HasSubstr("ttft_objective_s"));
  core::OpenEpoch epoch{0, std::vector<core::EpochMember>(1)};
  epoch.members[0].spec.slots = -1;
  EXPECT_THAT(Refusal(epoch), HasSubstr("slots -1 is outside 1.."));
  for (const double bad : {-1.0, std::nan(""), std::numeric_limits<double>::infinity()})
    EXPECT_THAT(Refusal(core::SetCost{0, 0, {.k1_s_per_pair = bad}}), HasSubstr("k1_s_per_pair")) << bad;
  const std::vector<core::CachedPrompt> cached = {{9, -1}};
  EXPECT_THAT(Refusal(core::Report{0, 0, {.cached = cached}}), HasSubstr("tokens -1 is outside"));
  EXPECT_THAT(Refusal(core::AddGroup{0, static_cast<core::GroupKind>(4)}),
              HasSubstr("kind 4 is outside 0..3"));
  std::string bytes;
  Encode(core::Cancel{5}, {}, {}, 3, true, bytes);
  EXPECT_EQ(Decode(bytes + '\x70', 3).status().message(), "a field is unknown");
  EXPECT_EQ(Decode(bytes.substr(0, 1) + '\1', 3).status().message(), "a record ends too early");
  EXPECT_EQ(Decode("\x63", 3).status().message(), "there is no record of kind 99");
  EXPECT_EQ(Decode("", 3).status().message(), "a record is empty");
}

TEST_F(LogFile, AWrittenLogReplaysIdentically) {
  WriteSession(1, 500);
  const Replayed replayed = ReplayLog(path());
  EXPECT_TRUE(replayed.status.ok()) << replayed.status;
  EXPECT_EQ(replayed.ending, LogReader::Ending::kClosed);
  EXPECT_FALSE(replayed.failed);
  EXPECT_GT(replayed.decisions, 100);
  struct stat info = {};
  ASSERT_EQ(stat(ListSegments(path())[0].path.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0007, 0u) << "not for every user of the machine";
}

TEST_F(LogFile, TheBoundHoldsAndTheRemainingSegmentsCanBeRead) {
  constexpr int64_t kBound = LogWriter::kMinBytes;
  std::unique_ptr<LogWriter> owned = Writer(kBound);
  LogWriter* const writer = owned.get();
  RecordedSession session(SessionSetup(), 7, std::move(owned));
  uint64_t last = 0;
  for (int round = 0; round < 200 && last < 13; ++round) {
    for (int i = 0; i < 600; ++i) session.Iterate();
    const absl::Time give_up = absl::Now() + absl::Minutes(1);
    while (writer->backlog_bytes() > 0 && absl::Now() < give_up) absl::SleepFor(absl::Milliseconds(1));
    ASSERT_EQ(writer->backlog_bytes(), 0) << "the writer stands still";
    EXPECT_LE(BytesOnDisk(), kBound);
    last = ListSegments(path()).back().number;
  }
  session.recorder.Close();
  EXPECT_GE(last, 13u) << "the session was too short to turn the log over";
  EXPECT_LE(BytesOnDisk(), kBound);
  EXPECT_GT(BytesOnDisk(), kBound / 2);
  absl::StatusOr<LogReader> reader = LogReader::Open(path());
  ASSERT_TRUE(reader.ok()) << reader.status();
  EXPECT_GE(reader->segments(), 4u);
  EXPECT_GT(reader->header().segment, 0u);
  Record record;
  int64_t records = 0;
  absl::StatusOr<bool> more;
  while ((more = reader->Next(record)).ok() && *more) records += ToJson(record).empty() ? 0 : 1;
  EXPECT_TRUE(more.ok()) << more.status();
  EXPECT_GT(records, 1000);
  EXPECT_EQ(reader->ending(), LogReader::Ending::kClosed);
  EXPECT_THAT(ReplayLog(path()).status.message(), HasSubstr("the session's first segment is missing"));
}

TEST_F(LogFile, ARestartBeginsANewSessionAndTheLastOneIsRead) {
  WriteSession(1, 300);
  WriteSession(2, 100);
  const std::vector<SegmentFile> files = ListSegments(path());
  ASSERT_EQ(files.size(), 2u);
  const Replayed last = ReplayLog(path()), first = ReplayLog(files[0].path);
  EXPECT_EQ(last.earlier, 1);
  EXPECT_FALSE(last.failed || first.failed);
  EXPECT_GT(last.decisions, 0);
  EXPECT_GT(first.decisions, last.decisions);
  // Damage in another session does not prevent a replay.
  const std::string older = Contents(files[0].path), zeros(1000, '\0');
  Put(files[0].path, zeros);
  EXPECT_EQ(ReplayLog(path()).decisions, last.decisions);
  EXPECT_FALSE(ReplayLog(files[0].path).status.ok());
  Put(files[0].path, older);
  Put(files[1].path, zeros);
  EXPECT_FALSE(ReplayLog(path()).status.ok()) << "the last session is the one that was asked for";
  EXPECT_TRUE(ReplayLog(files[0].path).status.ok());
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
  setup.policy_options.objective = "paper";
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
          case 0: payload[at] = static_cast<char>(rng.Next()); break;
          case 1: payload.erase(at, 1); break;
          default: payload.insert(at, 1, static_cast<char>(rng.Next()));
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

TEST_F(LogFile, OtherFilesAreRefusedInOneLine) {
  WriteSession(1, 5);
  const std::string file = ListSegments(path())[0].path, huge("\xff\xff\xff\x7f", 4);
  for (const auto& [bytes, message] : std::vector<std::pair<std::string, std::string>>{
           {std::string(kMagic) + std::string("\xff\xff\xff\xff\0\0\0\0", 8) + "abc",
            "a block's size is 4294967295 bytes"},
           {std::string(kMagic) + Frame(huge) + huge, "a record's size is 268435455 bytes"},
           {"something else entirely", "is not a decision log"},
           {"BFIODL1\n and what protobuf has written",
            file + ": decision log format 1; this program reads format 3"}}) {
    Put(file, bytes);
    const absl::Status status = ReplayLog(path()).status;
    EXPECT_TRUE(absl::IsDataLoss(status) || absl::IsInvalidArgument(status)) << status;
    EXPECT_THAT(status.message(), HasSubstr(message));
  }
  Put(file, std::string(kMagic));
  EXPECT_EQ(ReplayLog(path()).status.code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(ReplayLog(folder_ + "/other").status.code(), absl::StatusCode::kNotFound);
  // So is a path or bound that cannot be used.
  EXPECT_EQ(LogWriter::Open({folder_ + "/no/such/folder/log", 64 << 20}).status().code(),
            absl::StatusCode::kNotFound);
  EXPECT_THAT(LogWriter::Open({path(), 1000}).status().message(), HasSubstr("must be at least 1048576"));
}

// --- a failing log must not affect its router ---

// A session that is recorded to `writer`.
struct Session : RecordedSession {
  explicit Session(std::unique_ptr<LogWriter> owned)
      : RecordedSession({.policy = "lpt"}, 1, std::move(owned)) {}

  // Takes random turns until recording has stopped. Returns false if it still runs after `turns`.
  bool RunUntilStopped(int turns) {
    for (int i = 0; i < turns; ++i) {
      Iterate();
      if (recorder.stopped()) return true;
      if (i % 64 == 0) absl::SleepFor(absl::Milliseconds(1));
    }
    return false;
  }
  // Decisions go on.
  void ExpectPlans() {
    const int64_t plans = cluster.totals().plans;
    for (int i = 0; i < 200; ++i) session.Iterate();
    EXPECT_GT(cluster.totals().plans, plans);
  }
};

TEST_F(LogFile, AFullDiskStopsOnlyTheLog) {
  if (!fs::exists("/dev/full")) GTEST_SKIP() << "no /dev/full";
  auto writer = LogWriter::Open({"/dev/full", 64 << 20});
  ASSERT_TRUE(writer.ok()) << writer.status();
  Session session(*std::move(writer));
  EXPECT_TRUE(session.RunUntilStopped(100'000));
  session.ExpectPlans();
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

// An event larger than a record, or than the queue, ends the log with a line and a reason, and nothing else.
TEST_F(LogFile, AnEventThatIsTooLargeEndsOnlyTheLog) {
  for (const size_t ids : {size_t{1} << 20, size_t{20} << 20}) {
    SCOPED_TRACE(ids);
    std::vector<core::RequestId> finished(ids);
    for (size_t i = 0; i < ids; ++i) finished[i] = (i * 40503) % 100'000;
    Session session(Writer(ids == 1 << 20 ? LogWriter::kMinBytes : 1 << 30));
    session.session.Iterate();
    core::Report event{.report = {.step = 1 << 30}};
    event.report.finished = finished;
    session.cluster.Apply(event);
    session.recorder.Flush();
    EXPECT_TRUE(session.recorder.stopped());
    session.ExpectPlans();
    session.recorder.Close();
  }
}

}  // namespace
}  // namespace bfio::record
