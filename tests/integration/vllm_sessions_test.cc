// Byte-by-byte responses of a real vLLM, replayed by an engine behind a router: clients must get the meaning
// of the recorded sessions (tests/integration/vllm_sessions, made by tests/real/vllm --record).
#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>

#include <fstream>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "common/net/status.h"
#include "engines/vllm.grpc.pb.h"
#include "tests/testing/cluster.h"
#include "tests/testing/vllm_calls.h"

namespace bfio::testing {
namespace {

using ::testing::SizeIs;
using ::testing::StartsWith;

// One call of a recorded session.
struct Recorded {
  std::string method, status, request;
  std::vector<std::string> messages;
};

std::vector<Recorded> Session(const std::string& name) {
  std::vector<Recorded> calls;
  std::ifstream in(absl::StrCat("tests/integration/vllm_sessions/", name, ".txt"));
  EXPECT_TRUE(in.good()) << name;
  for (std::string line; std::getline(in, line);) {
    if (line.empty() || line[0] == '#') continue;
    const std::vector<std::string> words = absl::StrSplit(line, ' ');
    const auto bytes = [&](size_t word) {
      return word < words.size() ? absl::HexStringToBytes(words[word]) : "";
    };
    if (words[0] == "<") {
      calls.back().messages.push_back(bytes(1));
    } else {
      const std::string method = words[0].substr(words[0].rfind('/') + 1);
      calls.push_back({method, words[1], bytes(2), {}});
    }
  }
  EXPECT_FALSE(calls.empty()) << name;
  return calls;
}

template <typename Message>
Message Parse(const std::string& bytes) {
  Message message;
  EXPECT_TRUE(message.ParseFromString(bytes));
  return message;
}

pb::GenerateRequest RequestOf(const Recorded& call) {
  return Parse<pb::GenerateRequest>(call.request);
}

// A response as a gateway assembles it. The last message of a stream repeats the last chunk; only its end is
// used.
struct Answer {
  std::map<uint32_t, Tokens> tokens;
  std::map<uint32_t, pb::OutputLogProbs> logprobs;
  // Number of tokens of the last chunk.
  std::map<uint32_t, int> last;
  std::map<uint32_t, pb::GenerateComplete> ends;

  explicit Answer(const std::vector<std::string>& messages, bool stream) {
    for (const std::string& bytes : messages) {
      const auto message = Parse<pb::GenerateResponse>(bytes);
      if (message.has_chunk()) {
        Add(message.chunk(), message.chunk().token_ids());
      } else {
        if (!stream) Add(message.complete(), message.complete().output_ids());
        ends[message.complete().index()] = message.complete();
      }
    }
  }
  template <typename Part, typename Ids>
  void Add(const Part& part, const Ids& ids) {
    Tokens& to = tokens[part.index()];
    to.insert(to.end(), ids.begin(), ids.end());
    logprobs[part.index()].MergeFrom(part.output_logprobs());
    last[part.index()] = ids.size();
  }
};

// What vLLM sends as a stream instead of that message: a chunk per token, and an end that repeats the last.
std::vector<std::string> AsStream(const std::string& message) {
  auto whole = Parse<pb::GenerateResponse>(message);
  pb::GenerateComplete& end = *whole.mutable_complete();
  std::vector<std::string> messages;
  pb::GenerateResponse response;
  for (int i = 0; i < end.output_ids_size(); ++i) {
    pb::GenerateStreamChunk& chunk = *response.mutable_chunk();
    chunk.clear_token_ids();
    chunk.add_token_ids(end.output_ids(i));
    if (end.has_output_logprobs()) {
      pb::OutputLogProbs& logprobs = *chunk.mutable_output_logprobs();
      logprobs.Clear();
      logprobs.add_token_logprobs(end.output_logprobs().token_logprobs(i));
      logprobs.add_token_ids(end.output_ids(i));
      *logprobs.add_top_logprobs() = end.output_logprobs().top_logprobs(i);
    }
    messages.push_back(response.SerializeAsString());
  }
  *end.mutable_output_ids() = response.chunk().token_ids();
  end.set_completion_tokens(1);
  if (end.has_output_logprobs()) *end.mutable_output_logprobs() = response.chunk().output_logprobs();
  messages.push_back(whole.SerializeAsString());
  return messages;
}

// Answers a request with vLLM's recorded response to the same prompt and seed. If there are several, they are
// used in order, and the last one repeatedly. The router asks for streams only.
class RecordedEngine final : public pb::VllmEngine::Service {
 public:
  explicit RecordedEngine(const std::string& listen) {
    for (const char* name : {"server", "plain", "logprobs", "whole", "two_outputs", "stop", "abort"}) {
      for (Recorded& call : Session(name)) {
        // Only the first response to GetLoads is kept: that of an idle server.
        if (call.method == "Generate") {
          const pb::GenerateRequest request = RequestOf(call);
          if (request.sampling_params().n() != 1) continue;
          if (!request.stream()) call.messages = AsStream(call.messages.at(0));
          generate_[Key(request)].push_back(std::move(call));
        } else {
          others_.emplace(call.method, std::move(call));
        }
      }
    }
    grpc::ServerBuilder builder;
    builder.AddListeningPort(listen, grpc::InsecureServerCredentials());
    builder.RegisterService(this);
    server_ = builder.BuildAndStart();
    EXPECT_NE(server_, nullptr);
  }

  // The requests received, in order.
  std::vector<pb::GenerateRequest> taken() {
    std::lock_guard lock(mutex_);
    return taken_;
  }

 private:
  static std::string Key(const pb::GenerateRequest& request) {
    return absl::StrCat(request.tokenized().SerializeAsString(), " ", request.stream(), " ",
                        request.sampling_params().seed());
  }

  template <typename Response>
  grpc::Status Answer(const std::string& method, Response* response) {
    *response = Parse<Response>(others_.at(method).messages.at(0));
    return grpc::Status::OK;
  }
  grpc::Status GetServerInfo(grpc::ServerContext*, const pb::GetServerInfoRequest*,
                             pb::GetServerInfoResponse* response) override {
    return Answer("GetServerInfo", response);
  }
  grpc::Status GetModelInfo(grpc::ServerContext*, const pb::GetModelInfoRequest*,
                            pb::GetModelInfoResponse* response) override {
    return Answer("GetModelInfo", response);
  }
  grpc::Status GetLoads(grpc::ServerContext*, const pb::GetLoadsRequest*,
                        pb::GetLoadsResponse* response) override {
    return Answer("GetLoads", response);
  }
  grpc::Status HealthCheck(grpc::ServerContext*, const pb::HealthCheckRequest*,
                           pb::HealthCheckResponse* response) override {
    return Answer("HealthCheck", response);
  }
  grpc::Status Generate(grpc::ServerContext*, const pb::GenerateRequest* request,
                        grpc::ServerWriter<pb::GenerateResponse>* writer) override {
    std::vector<std::string> messages;
    {
      std::lock_guard lock(mutex_);
      taken_.push_back(*request);
      EXPECT_TRUE(request->stream());
      auto it = generate_.find(Key(*request));
      pb::GenerateRequest whole = *request;
      whole.set_stream(false);
      if (it == generate_.end()) it = generate_.find(Key(whole));
      if (it == generate_.end()) return {grpc::StatusCode::NOT_FOUND, "a request that was not recorded"};
      messages = it->second.front().messages;
      if (it->second.size() > 1) it->second.erase(it->second.begin());
    }
    for (const std::string& message : messages) {
      writer->Write(Parse<pb::GenerateResponse>(message));
      // The duration of a step.
      absl::SleepFor(absl::Milliseconds(1));
    }
    return grpc::Status::OK;
  }

  std::mutex mutex_;
  std::map<std::string, std::vector<Recorded>> generate_;
  std::map<std::string, Recorded> others_;
  std::vector<pb::GenerateRequest> taken_;
  std::unique_ptr<grpc::Server> server_;
};

class VllmSessions : public ::testing::Test {
 protected:
  static ClusterOptions Options(const std::string& engine) {
    return {.worker_processes = 0,
            .router_flags = {"--engines=vllm://" + engine, "--max_new_tokens=1000"},
            .ranks = 2};
  }
  void SetUp() override { ASSERT_TRUE(cluster_.ok()); }

  // Makes a gateway's call; returns the response messages.
  std::vector<std::string> Call(pb::GenerateRequest request) {
    request.clear_data_parallel_rank();
    const auto [messages, status] =
        RawCall(channel_, "/vllm.grpc.engine.VllmEngine/Generate", request.SerializeAsString());
    EXPECT_TRUE(status.ok()) << status.error_message();
    return messages;
  }

  const HeldPort port_;
  RecordedEngine engine_{port_.address()};
  Cluster cluster_{Options(port_.address())};
  const std::shared_ptr<grpc::Channel> channel_ =
      grpc::CreateChannel(cluster_.address(), grpc::InsecureChannelCredentials());
};

TEST_F(VllmSessions, AVllmClientGetsWhatVllmSent) {
  int calls = 0;
  for (const char* session : {"plain", "logprobs", "whole", "stop"}) {
    for (const Recorded& recorded : Session(session)) {
      const pb::GenerateRequest request = RequestOf(recorded);
      SCOPED_TRACE(absl::StrCat(session, ": ", request.request_id()));
      EXPECT_EQ(Call(request), recorded.messages);
      ++calls;
      pb::GenerateRequest taken = engine_.taken().back();
      EXPECT_THAT(taken.request_id(), StartsWith("bfio-"));
      taken.set_request_id(request.request_id());
      taken.set_data_parallel_rank(request.data_parallel_rank());
      taken.set_stream(request.stream());
      EXPECT_EQ(taken.SerializeAsString(), recorded.request);
    }
  }
  EXPECT_EQ(calls, 8);
  // The router has counted the same tokens, so the load returns to 0.
  EXPECT_TRUE(cluster_.WaitFor("ranks that are empty", [](const v1::ClusterState& state) {
    return state.workers_size() == 2 && state.workers(0).load_tokens() + state.workers(1).load_tokens() == 0;
  }));
  cluster_.StopCleanly();
}

TEST_F(VllmSessions, TwoOutputsAreThoseThatVllmMakesOfTheRequest) {
  int pairs = 0;
  for (const Recorded& recorded : Session("two_outputs")) {
    const pb::GenerateRequest request = RequestOf(recorded);
    if (request.sampling_params().n() != 2) continue;
    SCOPED_TRACE(request.request_id());
    ++pairs;
    const Answer expected(recorded.messages, request.stream()), got(Call(request), request.stream());
    ASSERT_THAT(expected.ends, SizeIs(2));
    EXPECT_NE(expected.tokens.at(0), expected.tokens.at(1)) << "indexes could not be told apart";
    EXPECT_EQ(got.tokens, expected.tokens);
    for (const auto& [index, end] : expected.ends) {
      EXPECT_EQ(got.logprobs.at(index).SerializeAsString(), expected.logprobs.at(index).SerializeAsString());
      ASSERT_TRUE(got.ends.count(index));
      EXPECT_EQ(got.ends.at(index).finish_reason(), end.finish_reason());
      EXPECT_EQ(got.ends.at(index).prompt_tokens(), end.prompt_tokens());
      // In the end of a stream vLLM counts the tokens of the last chunk, which vary with timing.
      EXPECT_EQ(static_cast<int>(end.completion_tokens()), expected.last.at(index));
      EXPECT_EQ(static_cast<int>(got.ends.at(index).completion_tokens()), got.last.at(index));
    }
  }
  EXPECT_EQ(pairs, 2);
}

// Another client aborts the request on the engine: it continues after its tokens, and its client gets the
// tokens of an undisturbed run.
TEST_F(VllmSessions, AnAbortedStreamGoesOnAfterItsTokens) {
  std::vector<Recorded> generates;
  for (Recorded& call : Session("abort"))
    if (call.method == "Generate") generates.push_back(std::move(call));
  ASSERT_THAT(generates, SizeIs(3));
  const Answer aborted(generates[0].messages, true), expected(generates[2].messages, true);
  ASSERT_EQ(aborted.ends.at(0).finish_reason(), "abort");
  const size_t before = aborted.tokens.at(0).size();
  ASSERT_GT(before, 0u);
  const Answer got(Call(RequestOf(generates[0])), true);
  EXPECT_EQ(got.tokens, expected.tokens);
  EXPECT_EQ(got.ends.at(0).finish_reason(), "length");
  EXPECT_EQ(got.ends.at(0).prompt_tokens(), expected.ends.at(0).prompt_tokens());
  const std::vector<pb::GenerateRequest> taken = engine_.taken();
  ASSERT_THAT(taken, SizeIs(2));
  EXPECT_EQ(taken[1].sampling_params().max_tokens(), expected.tokens.at(0).size() - before);
}

TEST_F(VllmSessions, TheRanksHaveTheSlotsAndTheMemoryThatVllmReports) {
  pb::GetServerInfoResponse server;
  for (const Recorded& call : Session("server"))
    if (call.method == "GetServerInfo") server = Parse<pb::GetServerInfoResponse>(call.messages.at(0));
  ASSERT_EQ(server.data_parallel_size(), 2);
  ASSERT_GT(server.max_num_seqs(), 0);
  const v1::ClusterState state = cluster_.State();
  ASSERT_EQ(state.workers_size(), 2);
  for (const v1::WorkerState& worker : state.workers())
    EXPECT_EQ(worker.slots(), static_cast<uint32_t>(server.max_num_seqs()));
  // Each of the two had 1 GiB (VLLM_CPU_KVCACHE_SPACE), and a token of that model takes 1 KiB.
  for (const v1::WorkerState& worker : state.workers()) EXPECT_EQ(worker.kv_tokens(), uint64_t{1} << 20);
}

// For a gateway it makes no difference whether the router refuses or passes on the engine's refusal.
TEST_F(VllmSessions, WhatVllmRefusesTheRouterRefuses) {
  for (const Recorded& recorded : Session("refused")) {
    const pb::GenerateRequest request = RequestOf(recorded);
    const auto [messages, status] =
        RawCall(channel_, "/vllm.grpc.engine.VllmEngine/Generate", recorded.request);
    EXPECT_EQ(absl::StatusCodeToString(FromGrpcStatus(status).code()), recorded.status)
        << request.request_id() << ": " << status.error_message();
    EXPECT_THAT(messages, SizeIs(0));
  }
  EXPECT_THAT(engine_.taken(), SizeIs(0));
}

}  // namespace
}  // namespace bfio::testing
