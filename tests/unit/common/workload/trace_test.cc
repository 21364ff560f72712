#include "common/workload/trace.h"

#include <zlib.h>

#include <filesystem>
#include <map>
#include <sstream>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/temp_folder.h"

namespace bfio {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

absl::StatusOr<Trace> TryParse(const std::string& text, const TraceOptions& options = {}) {
  std::istringstream in(text);
  return ParseTrace(in, "test", options);
}
Trace Parse(const std::string& text, const TraceOptions& options = {}) {
  auto trace = TryParse(text, options);
  EXPECT_TRUE(trace.ok()) << text << trace.status();
  return *std::move(trace);
}

TEST(TraceTest, AzureTimesHaveSevenFractionalDigitsAndStartAtZero) {
  const Trace trace = Parse(
      "TIMESTAMP,ContextTokens,GeneratedTokens\n"
      "2023-11-16 18:15:46.6805900,374,44\n"
      "2023-11-16 18:15:50.9951690,396,109\n");
  EXPECT_EQ(trace.format, "azure");
  EXPECT_TRUE(trace.has_arrivals);
  ASSERT_EQ(trace.requests.size(), 2u);
  EXPECT_EQ(trace.requests[0].arrival_s, 0);
  EXPECT_NEAR(trace.requests[1].arrival_s, 4.3145790, 1e-9);
  EXPECT_EQ(trace.requests[1].prompt_tokens, 396);
  EXPECT_EQ(trace.requests[1].output_tokens, 109);
}

TEST(TraceTest, AzureTimesMayCarryAZoneAsIn2024) {
  const Trace trace = Parse(
      "TIMESTAMP,ContextTokens,GeneratedTokens\n"
      "2024-05-12 00:00:00+00:00,10,1\n2024-05-12T02:00:00.5+02:00,11,2\n");
  EXPECT_NEAR(trace.requests[1].arrival_s, 0.5, 1e-9);
}

// Rows as in the two releases: API calls have no session, failed requests have no response, times are seconds
// with or without a fraction.
TEST(TraceTest, BurstGptFilesReadWholeInEitherReleaseByColumnName) {
  const Trace older = Parse(
      "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
      "5,ChatGPT,472,18,490,Conversation log\n"
      "45,\"Chat, \"\"GPT\"\"\",1087,230,1317,Conversation log\n"
      "118,GPT-4,417,276,693,Conversation log\n"
      "185,ChatGPT,1360,0,1360,Conversation log\n"
      "185,GPT-4,185,7,192,API log\n"
      "5268845,ChatGPT,1012,0,0,API log\n");
  EXPECT_EQ(older.format, "burstgpt");
  EXPECT_TRUE(older.has_arrivals);
  ASSERT_EQ(older.requests.size(), 4u);
  EXPECT_EQ(older.dropped, 2);
  EXPECT_THAT(older.dropped_examples, ElementsAre("line 5: Response tokens '0' is not positive",
                                                  "line 7: Response tokens '0' is not positive"));
  EXPECT_EQ(older.requests[2].arrival_s, 113);
  EXPECT_EQ(older.requests[2].prompt_tokens, 417);
  EXPECT_EQ(older.requests[2].output_tokens, 276);

  const Trace newer = Parse(
      "Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
      "0.0,,,GPT-4,156,72,228,API log\n"
      "12.5,\"8f1c2e04,7a35\",3.25,ChatGPT,820,304,1124,Conversation log\n"
      "12.5,8f1c2e04-7a35-4c53-9a51-0b9e1d6c7f21,,ChatGPT,1124,0,1124,Conversation log\n"
      "9.75,1043,1.5,GPT-4,333,7,340,Conversation log\n"
      "20.0,,,GPT-4,96\n");
  EXPECT_EQ(newer.format, "burstgpt");
  ASSERT_EQ(newer.requests.size(), 3u);
  EXPECT_EQ(newer.dropped, 2);
  EXPECT_THAT(newer.dropped_examples, ElementsAre("line 4: Response tokens '0' is not positive",
                                                  "line 6: 5 fields, at least 6 expected"));
  EXPECT_EQ(newer.requests[1].prompt_tokens, 333) << "sorted by arrival";
  EXPECT_EQ(newer.requests[2].arrival_s, 12.5);
  EXPECT_EQ(newer.requests[2].prompt_tokens, 820);
  EXPECT_EQ(newer.requests[2].output_tokens, 304);
}

TEST(TraceTest, MooncakeTimesAreMilliseconds) {
  const Trace trace = Parse(
      "{\"timestamp\": 1000, \"input_length\": 6755, \"output_length\": 500, \"hash_ids\": [0, 1]}\n"
      "{\"timestamp\": 4500, \"input_length\": 7319, \"output_length\": 490, \"hash_ids\": []}\n"
      "{\"timestamp\": 4600, \"input_length\": 7}\n"
      "{\"timestamp\": \"x\", \"input_length\": 7, \"output_length\": 1}\n"
      "{truncated\n");
  EXPECT_EQ(trace.format, "mooncake");
  ASSERT_EQ(trace.requests.size(), 2u);
  EXPECT_DOUBLE_EQ(trace.requests[1].arrival_s, 3.5);
  EXPECT_EQ(trace.dropped, 3);
  EXPECT_THAT(trace.dropped_examples[0], HasSubstr("line 3: no output_length"));
  EXPECT_THAT(trace.dropped_examples[2], HasSubstr("line 5: is not JSON"));
}

TEST(TraceTest, BlocksAreNamedAlikeWhereTheFileSaysSo) {
  const std::string rows =
      "{\"timestamp\": 0, \"input_length\": 1100, \"output_length\": 5, \"hash_ids\": [0, 1, 2]}\n"
      "{\"timestamp\": 1, \"input_length\": 600, \"output_length\": 5, \"hash_ids\": [0, 7]}\n"
      "{\"timestamp\": 2, \"input_length\": 600, \"output_length\": 5}\n"
      "{\"timestamp\": 3, \"input_length\": 600, \"output_length\": 5, \"hash_ids\": [0.5]}\n"
      "{\"timestamp\": 3, \"input_length\": 600, \"output_length\": 5, \"hash_ids\": 3}\n";
  const Trace trace = Parse(rows, {.blocks = true});
  EXPECT_EQ(trace.block_tokens, 512);
  EXPECT_EQ(trace.dropped, 2);
  ASSERT_EQ(trace.requests.size(), 3u);
  ASSERT_EQ(trace.requests[0].blocks.size(), 3u);
  ASSERT_EQ(trace.requests[1].blocks.size(), 2u);
  EXPECT_EQ(trace.requests[0].blocks[0], trace.requests[1].blocks[0]);
  EXPECT_NE(trace.requests[0].blocks[1], trace.requests[1].blocks[1]);
  EXPECT_THAT(trace.requests[2].blocks, ElementsAre());
  for (const TraceRequest& request : Parse(rows).requests) EXPECT_THAT(request.blocks, ElementsAre());

  const std::string chat =
      "{\"chat_id\": 1, \"turn\": 1, \"timestamp\": 1, \"input_length\": 20, \"output_length\": 5, "
      "\"hash_ids\": [3, 4]}\n";
  EXPECT_EQ(Parse(chat, {.blocks = true}).block_tokens, 16);
  const std::string next =
      "{\"chat_id\": 2, \"turn\": 1, \"timestamp\": 11, \"input_length\": 2, \"output_length\": 5}\n";
  EXPECT_EQ(Parse(chat + next).requests[1].arrival_s, 10) << "seconds; Mooncake's are milliseconds";
}

std::string Session(absl::string_view scope, absl::string_view more = "") {
  return absl::StrCat(R"({"id": "a", "block_size": 64, "hash_id_scope": ")", scope, R"(", "requests": [
    {"t": 0, "type": "n", "in": 130, "out": 20, "hash_ids": [1, 2]},
    {"t": 3, "type": "s", "in": 0, "out": 20, "hash_ids": [1, 2]},
    {"t": 9, "type": "n", "in": 200, "out": 30, "hash_ids": [1, 2, 3], "think_time": 2.5}]})",
                      more);
}

TEST(TraceTest, ATurnOfASessionFollowsTheOneBefore) {
  const Trace trace = Parse(Session("local"), {.blocks = true});
  EXPECT_EQ(trace.format, "sessions");
  EXPECT_EQ(trace.block_tokens, 64);
  EXPECT_FALSE(trace.has_arrivals);
  ASSERT_EQ(trace.requests.size(), 2u);
  EXPECT_EQ(trace.requests[0].after, -1);
  EXPECT_EQ(trace.requests[1].after, 0);
  EXPECT_EQ(trace.requests[1].think_s, 2.5);
  EXPECT_EQ(trace.requests[1].prompt_tokens, 200);
  EXPECT_EQ(trace.requests[1].blocks[1], trace.requests[0].blocks[1]);
  EXPECT_THAT(trace.dropped_examples, ElementsAre("request 2: in '0' is not positive"));
  for (const char* text : {R"({"requests": []})", R"({"requests": [{"in": 1, "out": 1, "think_time": -1}]})",
                           R"({"requests": [)", R"({"block_size": 0, "requests": [{"in": 1, "out": 1}]})"}) {
    EXPECT_EQ(TryParse(text).status().code(), absl::StatusCode::kInvalidArgument) << text;
  }
}

TEST(TraceTest, AFolderHasSessionsCompressedOrNot) {
  const testing::TempFolder files;
  const std::filesystem::path folder = files.path();
  const auto write = [&](const std::string& name, const std::string& text) {
    const gzFile file = gzopen((folder / name).c_str(), name.back() == 'z' ? "wb" : "wT");
    ASSERT_EQ(gzwrite(file, text.data(), static_cast<unsigned>(text.size())), std::ssize(text));
    ASSERT_EQ(gzclose(file), Z_OK);
  };
  write("a.json.gz", Session("local"));
  write("b.json", Session("local"));
  write("c.json", "{\"requests\"");
  write("d.txt", "no session");
  const auto trace = ReadTrace(folder, {.blocks = true});
  ASSERT_TRUE(trace.ok()) << trace.status();
  ASSERT_EQ(trace->requests.size(), 4u);
  EXPECT_EQ(trace->requests[2].after, -1);
  EXPECT_EQ(trace->requests[3].after, 2);
  EXPECT_NE(trace->requests[2].blocks[0], trace->requests[0].blocks[0]) << "names hold in one session";
  EXPECT_EQ(trace->dropped, 4);

  // Cut off.
  const std::string whole = folder / "a.json.gz";
  std::filesystem::resize_file(whole, std::filesystem::file_size(whole) - 9);
  EXPECT_THAT(std::string(ReadTrace(whole).status().message()), HasSubstr("damaged or cut off"));
}

TEST(TraceTest, GenericTracesMayLackArrivals) {
  const Trace without = Parse("num_prefill_tokens,num_decode_tokens\n632,34\n220,7\n");
  EXPECT_EQ(without.format, "generic");
  EXPECT_FALSE(without.has_arrivals);
  EXPECT_EQ(without.requests[1].prompt_tokens, 220);

  const Trace with = Parse("num_decode_tokens,arrived_at,extra,num_prefill_tokens\n1,10.25,x,2\n3,10,x,4\n");
  EXPECT_TRUE(with.has_arrivals);
  EXPECT_EQ(with.requests[0].prompt_tokens, 4) << "sorted by arrival";
  EXPECT_DOUBLE_EQ(with.requests[1].arrival_s, 0.25);
}

TEST(TraceTest, WindowsFilesAndEmptyLinesReadTheSame) {
  const Trace trace = Parse("\xef\xbb\xbf\r\nnum_prefill_tokens,num_decode_tokens\r\n\r\n5,6\r\n\r\n7,8");
  EXPECT_EQ(trace.requests.size(), 2u);
  EXPECT_EQ(trace.dropped, 0);

  const Trace bom = Parse("\xef\xbb\xbf\"num_prefill_tokens\",\"num_decode_tokens\"\r\n5,6\r\n");
}

TEST(TraceTest, EveryKindOfBadRowIsCountedWithItsReason) {
  const std::string header = "num_prefill_tokens,num_decode_tokens\n1,1\n";
  const struct {
    const char* row;
    const char* reason;
  } kCases[] = {
      {"5", "1 fields, at least 2 expected"},
      {"abc,6", "num_prefill_tokens 'abc' is not a number"},
      {"0x10,4", "'0x10' is not a number"},
      {",6", "is not a number"},
      {"0,6", "is not positive"},
      {"5,-6", "is not positive"},
      {"5.5,6", "is not a whole number"},
      {"nan,6", "is not a whole number"},
      {"4194305,6", "is too large"},
      {"99999999999999999999999,6", "is too large"},
      {"inf,6", "is too large"},
      {"\"5,6", "broken quotes"},
      {"\"5\"x,6", "broken quotes"},
  };
  for (const auto& c : kCases) {
    const Trace trace = Parse(header + c.row + "\n");
    EXPECT_EQ(trace.dropped, 1) << c.row;
    EXPECT_THAT(trace.dropped_examples, ElementsAre(HasSubstr(c.reason)));
    EXPECT_THAT(trace.dropped_examples[0], HasSubstr("line 3: "));
  }
  const Trace whole = Parse(header + "374.0,4194304\n");
  EXPECT_EQ(whole.requests[1].output_tokens, kMaxTraceTokens);
}

TEST(TraceTest, LinesHaveABound) {
  EXPECT_THAT(ReadTrace("/dev/zero").status().message(), HasSubstr("a line is too long"));
  const std::string commas(size_t{1} << 20, ',');
  EXPECT_EQ(Parse("num_prefill_tokens,num_decode_tokens\n1,1\n2,2" + commas + "\n").dropped, 1);
  std::istringstream header("num_prefill_tokens,num_decode_tokens" + commas + "\n1,1\n");
  EXPECT_THAT(ParseTrace(header, "x").status().message(), HasSubstr("fits no known trace format"));
}

// A small compressed file may have any number of rows.
TEST(TraceTest, MemoryHasABound) {
  const std::string rows = "num_prefill_tokens,num_decode_tokens\n1,1\n2,2\n3,3\n";
  EXPECT_TRUE(TryParse(rows, {.most_bytes = 3 * 64}).ok());
  EXPECT_THAT(std::string(TryParse(rows, {.most_bytes = 3 * 64 - 1}).status().message()),
              HasSubstr("more than 2 requests"));
  EXPECT_TRUE(TryParse(rows, {.max_requests = 2, .most_bytes = 2 * 64}).ok());
  EXPECT_FALSE(TryParse(R"({"timestamp":1,"input_length":600,"output_length":1,"hash_ids":[1,2]})",
                        {.blocks = true, .most_bytes = 64 + 8})
                   .ok());
  EXPECT_FALSE(TryParse(Session("local"), {.most_bytes = 64}).ok());
}

TEST(TraceTest, BadTimesAreBadRows) {
  const Trace azure = Parse(
      "TIMESTAMP,ContextTokens,GeneratedTokens\nyesterday,1,1\n2023-02-30 00:00:00,1,1\n"
      "2023-11-16 18:15:46,1,1\n");
  EXPECT_EQ(azure.dropped, 2);
  const Trace late = Parse("arrived_at,num_prefill_tokens,num_decode_tokens\n0,100,10\n1e300,100,20\n");
  EXPECT_THAT(late.dropped_examples, ElementsAre(HasSubstr("1e300"))) << "a replay would never end";
  const Trace burst = Parse("Timestamp,Request tokens,Response tokens\ninf,1,1\nnan,1,1\n,1,1\n3,1,1\n");
  EXPECT_EQ(burst.dropped, 3);
}

TEST(TraceTest, PublishedTracesReadWhole) {
  const std::filesystem::path folder = "../shared/traces";
  if (!std::filesystem::exists(folder / "AzureLLMInferenceTrace_conv.csv"))
    GTEST_SKIP() << "no traces in " << folder;
  const auto azure = ReadTrace(folder / "AzureLLMInferenceTrace_conv.csv");
  ASSERT_TRUE(azure.ok()) << azure.status();
  EXPECT_EQ(azure->requests.size(), 19366u);
  EXPECT_EQ(azure->dropped, 0);
  EXPECT_NEAR(azure->requests.back().arrival_s, 3600, 120);
  const auto burst = ReadTrace(folder / "burstgpt_sample_8000.csv");
  ASSERT_TRUE(burst.ok()) << burst.status();
  EXPECT_EQ(burst->requests.size() + static_cast<size_t>(burst->dropped), 8000u);
  const auto mooncake = ReadTrace(folder / "mooncake_sample_200.jsonl");
  ASSERT_TRUE(mooncake.ok()) << mooncake.status();
  EXPECT_EQ(mooncake->requests.size(), 200u);
  const auto agents = ReadTrace(folder / "agents", {.blocks = true});
  ASSERT_TRUE(agents.ok()) << agents.status();
  EXPECT_EQ(agents->requests.size(), 403u);
  EXPECT_EQ(agents->dropped, 0);
}

TEST(DrawWithReplacementTest, KeepsRowsWholeAndDrawsThemEquallyOften) {
  const Trace trace =
      Parse("arrived_at,num_prefill_tokens,num_decode_tokens\n1,10,100\n2,20,200\n5,30,300\n");
  const Trace drawn = DrawWithReplacement(trace, 30'000, 4);
  EXPECT_FALSE(drawn.has_arrivals);
  EXPECT_EQ(drawn.source, "test");
  ASSERT_EQ(drawn.requests.size(), 30'000u);
  std::map<int64_t, int> times;
  for (const TraceRequest& request : drawn.requests) {
    EXPECT_EQ(request.output_tokens, 10 * request.prompt_tokens);
    EXPECT_EQ(request.arrival_s, 0);
    ++times[request.prompt_tokens];
  }
  ASSERT_EQ(times.size(), 3u);
  for (const auto& [prompt, count] : times) EXPECT_NEAR(count, 10'000, 400) << prompt;  // 5 std. deviations
}

}  // namespace
}  // namespace bfio
