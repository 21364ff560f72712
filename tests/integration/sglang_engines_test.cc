// A router in front of a scripted SGLang server (--engines=sglang://): conformance to its protocol, because
// SGLang itself needs a GPU. engines_test.cc covers the behaviour of engines of any protocol.
#include <gmock/gmock.h>

#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "tests/testing/cluster.h"
#include "tests/testing/scripted_engine.h"
#include "tests/testing/sglang_calls.h"

namespace bfio::testing::sglang {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

// Two ranks, a token every 2 ms, with ScriptedEngine's tokens. When a request ends early (Abort, or its
// caller has left), all requests whose names begin with its name end too. By default the server chooses ranks
// itself, as smg-grpc-servicer does.
class ScriptedSglang final : public pb::SglangScheduler::Service {
 public:
  // kAttention: reports ranks as newer servers do with --enable-dp-attention.
  enum class Ranks { kOwn, kAttention, kPinned };
  explicit ScriptedSglang(const std::string& listen, Ranks ranks = Ranks::kOwn) : ranks_(ranks) {
    grpc::ServerBuilder builder;
    builder.AddListeningPort(listen, grpc::InsecureServerCredentials());
    builder.RegisterService(this);
    server_ = builder.BuildAndStart();
    EXPECT_NE(server_, nullptr) << listen;
  }
  ~ScriptedSglang() override { Kill(); }
  void Kill() {
    if (server_ != nullptr) server_->Shutdown(std::chrono::system_clock::now());
    server_.reset();
  }
  std::vector<pb::GenerateRequest> requests() {
    std::lock_guard lock(mutex_);
    return requests_;
  }
  std::vector<pb::GenerateResponse> sent() {
    std::lock_guard lock(mutex_);
    return sent_;
  }
  std::set<std::string> aborted() {
    std::lock_guard lock(mutex_);
    return aborted_;
  }

 private:
  using Status = grpc::Status;
  Status GetServerInfo(grpc::ServerContext*, const pb::GetServerInfoRequest*,
                       pb::GetServerInfoResponse* response) override {
    auto& args = *response->mutable_server_args()->mutable_fields();
    args["dp_size"].set_number_value(ranks_ == Ranks::kAttention ? 1 : 2);
    if (ranks_ == Ranks::kAttention) args["attn_dp_size"].set_number_value(2);
    args["max_running_requests"].set_number_value(16);
    args["chunked_prefill_size"].set_string_value("not a number");
    response->set_max_total_num_tokens(50'000);
    return Status::OK;
  }
  Status GetModelInfo(grpc::ServerContext*, const pb::GetModelInfoRequest*,
                      pb::GetModelInfoResponse* response) override {
    response->set_served_model_name("scripted");
    response->set_max_context_length(4'096);
    return Status::OK;
  }
  Status GetLoads(grpc::ServerContext*, const pb::GetLoadsRequest*, pb::GetLoadsResponse* response) override {
    for (int rank = 0; rank < 2; ++rank) {
      response->add_loads()->set_dp_rank(rank);
      response->mutable_loads(rank)->set_max_running_requests(6);
      response->mutable_loads(rank)->set_num_running_reqs(rank == 0 ? 3 : 4);
      response->mutable_loads(rank)->set_num_used_tokens(rank == 0 ? 100 : 200);
    }
    return Status::OK;
  }
  Status HealthCheck(grpc::ServerContext*, const pb::HealthCheckRequest*,
                     pb::HealthCheckResponse* response) override {
    response->set_healthy(true);
    return Status::OK;
  }
  Status Abort(grpc::ServerContext*, const pb::AbortRequest* request, pb::AbortResponse*) override {
    std::lock_guard lock(mutex_);
    aborted_.insert(request->request_id());
    AbortAll(request->request_id());
    return Status::OK;
  }
  void AbortAll(const std::string& prefix) {
    for (auto& [name, aborted] : running_) aborted = aborted || name.starts_with(prefix);
  }
  Status Generate(grpc::ServerContext* context, const pb::GenerateRequest* request,
                  grpc::ServerWriter<pb::GenerateResponse>* writer) override {
    {
      std::lock_guard lock(mutex_);
      requests_.push_back(*request);
      running_[request->request_id()] = false;
    }
    const Status status = Run(context, request, writer);
    std::lock_guard lock(mutex_);
    running_.erase(request->request_id());
    if (context->IsCancelled()) AbortAll(request->request_id());
    return status;
  }
  Status Run(grpc::ServerContext* context, const pb::GenerateRequest* request,
             grpc::ServerWriter<pb::GenerateResponse>* writer) {
    if (request->has_data_parallel_rank() != (ranks_ == Ranks::kPinned) ||
        request->data_parallel_rank() > 1 || request->sampling_params().n() > 1)
      return {grpc::StatusCode::INVALID_ARGUMENT, "not what a router sends"};
    const auto& ids = request->tokenized().input_ids();
    if (!ids.empty() && ids[0] == kBadRequest) {
      context->AddTrailingMetadata("smg-constraint-failed", "engine");
      return {grpc::StatusCode::FAILED_PRECONDITION, "the grammar"};
    }
    const Tokens tokens = TokensAfter({ids.begin(), ids.end()}, request->sampling_params().max_new_tokens());
    const auto send = [&](pb::GenerateResponse& response) {
      response.set_request_id(request->request_id());
      response.GetReflection()->MutableUnknownFields(&response)->AddVarint(77, 1);
      {
        std::lock_guard lock(mutex_);
        sent_.push_back(response);
      }
      writer->Write(response);
    };
    const auto fault = static_cast<uint32_t>(ids[0]);
    std::vector<pb::GenerateResponse> held;
    std::optional<size_t> aborted_at;
    const auto aborted = [&] {
      std::lock_guard lock(mutex_);
      return running_.at(request->request_id());
    };
    for (size_t made = 1; made <= tokens.size() && !aborted_at; ++made) {
      absl::SleepFor(absl::Milliseconds(2));
      if (context->IsCancelled()) return Status::CANCELLED;
      if (!request->stream()) continue;
      pb::GenerateResponse response;
      response.mutable_chunk()->add_token_ids(tokens[made - 1]);
      response.mutable_chunk()->set_prompt_tokens(static_cast<uint32_t>(ids.size()));
      response.mutable_chunk()->set_completion_tokens(static_cast<uint32_t>(made));
      if (made == 3 && fault == kSwapped) held.push_back(response);
      if (made != 3 || (fault != kSwapped && fault != kMissing)) send(response);
      if (made == 3 && fault == kTwice) send(response);
      if (made == 4)
        for (pb::GenerateResponse& one : held) send(one);
      if (made == 3 && fault == kUnavailable) return {grpc::StatusCode::UNAVAILABLE, "reset"};
      if (made == 3 && fault == kInternal) return {grpc::StatusCode::INTERNAL, "reset"};
      if ((made == 3 && fault == kEngineAbort) || aborted()) aborted_at = made;
    }
    pb::GenerateResponse response;
    pb::GenerateComplete& complete = *response.mutable_complete();
    complete.set_finish_reason(aborted_at ? "abort" : "length");
    complete.set_prompt_tokens(static_cast<uint32_t>(ids.size()));
    complete.set_completion_tokens(static_cast<uint32_t>(aborted_at.value_or(tokens.size())));
    // When streaming, the completion has only the last chunk's token.
    if (!request->stream()) {
      complete.mutable_output_ids()->Add(tokens.begin(), tokens.end());
    } else {
      complete.add_output_ids(tokens[complete.completion_tokens() - 1]);
    }
    send(response);
    return Status::OK;
  }

  const Ranks ranks_;
  std::mutex mutex_;
  std::vector<pb::GenerateRequest> requests_;
  std::vector<pb::GenerateResponse> sent_;
  std::set<std::string> aborted_;
  // Running requests by name: whether each has been aborted.
  std::map<std::string, bool> running_;
  std::unique_ptr<grpc::Server> server_;
};

class SglangEngines : public ::testing::Test {
 protected:
  // `pinned`: each rank of a server is a rank of the router.
  void Serve(const std::vector<std::string>& addresses, bool pinned = false) {
    std::string engines;
    for (const std::string& address : addresses)
      absl::StrAppend(&engines, engines.empty() ? "" : ",", "sglang://", address);
    ClusterOptions options;
    options.worker_processes = 0;
    options.ranks = (pinned ? 2 : 1) * static_cast<int>(addresses.size());
    options.router_flags = {"--client_apis=bfio,sglang",
                            "--engines=" + engines + (pinned ? "?pinned=1" : "")};
    cluster_ = std::make_unique<Cluster>(options);
    ASSERT_TRUE(cluster_->ok());
    stub_ = StubAt(cluster_->address());
  }
  static v1::GenerateRequest OwnRequest(const Tokens& prompt, uint32_t output) {
    v1::GenerateRequest request;
    request.mutable_token_ids()->mutable_ids()->Add(prompt.begin(), prompt.end());
    request.set_max_new_tokens(output);
    request.mutable_sampling()->set_temperature(0);
    return request;
  }

  std::unique_ptr<Cluster> cluster_;
  std::unique_ptr<pb::SglangScheduler::Stub> stub_;
};

TEST_F(SglangEngines, RequestsOfBfioAreTranslated) {
  const HeldPort port;
  ScriptedSglang engine(port.address(), ScriptedSglang::Ranks::kPinned);
  Serve({port.address()}, true);
  EXPECT_TRUE(cluster_->WaitFor("its sizes", [](const v1::ClusterState& state) {
    return state.workers_size() == 2 && state.workers(0).slots() == 6 &&
           state.workers(0).kv_tokens() == 50'000;
  }));
  std::vector<std::unique_ptr<RequestStream>> streams;
  for (uint32_t i = 0; i < 20; ++i)
    streams.push_back(std::make_unique<RequestStream>(cluster_->inference(), OwnRequest({4, 5 + i}, 5 + i)));
  for (uint32_t i = 0; i < 20; ++i) EXPECT_EQ(streams[i]->End().tokens, TokensAfter({4, 5 + i}, 5 + i));
  std::map<int32_t, int> by_rank;
  for (const pb::GenerateRequest& request : engine.requests()) {
    ++by_rank[request.data_parallel_rank()];
    EXPECT_TRUE(request.stream());
    EXPECT_EQ(request.sampling_params().top_k(), -1);
    EXPECT_EQ(request.sampling_params().top_p(), 1);
    EXPECT_EQ(request.sampling_params().repetition_penalty(), 1);
  }
  EXPECT_EQ(by_rank.size(), 2u);
  v1::GenerateRequest seeded = OwnRequest({4, 5}, 5);
  seeded.mutable_sampling()->set_temperature(1);
  seeded.mutable_sampling()->set_seed(3);
  const GenerateResult refused = testing::Generate(cluster_->inference(), seeded);
  EXPECT_EQ(refused.status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(refused.status.error_message(), HasSubstr("sampling.seed"));
  cluster_->StopCleanly();
}

// The server's load is the sum over its ranks.
TEST_F(SglangEngines, AServerThatChoosesItsRanksItselfIsOneRank) {
  for (const auto ranks : {ScriptedSglang::Ranks::kOwn, ScriptedSglang::Ranks::kAttention}) {
    const HeldPort port;
    ScriptedSglang engine(port.address(), ranks);
    Serve({port.address()});
    EXPECT_TRUE(cluster_->WaitFor("its sizes", [](const v1::ClusterState& state) {
      return state.workers_size() == 1 && state.workers(0).slots() == 12 &&
             state.workers(0).kv_tokens() == 100'000;
    }));
    EXPECT_EQ(testing::Generate(cluster_->inference(), OwnRequest({4, 5}, 5)).tokens, TokensAfter({4, 5}, 5));
    EXPECT_TRUE(cluster_->WaitFor("its load", [](const v1::ClusterState& state) {
      return state.workers(0).engine_requests() == 7 && state.workers(0).engine_tokens() == 300;
    }));
  }
}

TEST_F(SglangEngines, AGatewaysRequestPassesAsItCame) {
  const HeldPort port;
  ScriptedSglang engine(port.address());
  Serve({port.address()});
  pb::GenerateRequest request = Request(8);
  request.set_request_id("mine");
  request.set_return_logprob(true);
  request.set_lora_id("adapter");
  request.mutable_sampling_params()->set_regex("a*");
  request.mutable_sampling_params()->set_min_p(0.5);
  request.mutable_mm_inputs();
  request.GetReflection()->MutableUnknownFields(&request)->AddLengthDelimited(99, "unknown");
  for (const bool stream : {true, false}) {
    SCOPED_TRACE(stream);
    request.set_stream(stream);
    const size_t before = engine.sent().size();
    grpc::ClientContext context;
    const auto reader = stub_->Generate(&context, request);
    std::vector<std::string> got, expected;
    pb::GenerateResponse response;
    while (reader->Read(&response)) got.push_back(response.SerializeAsString());
    const grpc::Status status = reader->Finish();
    ASSERT_TRUE(status.ok()) << status.error_message();
    const std::vector<pb::GenerateResponse> sent = engine.sent();
    for (size_t i = before; i < sent.size(); ++i) {
      pb::GenerateResponse one = sent[i];
      one.set_request_id("mine");
      expected.push_back(one.SerializeAsString());
    }
    EXPECT_EQ(got, expected);
    EXPECT_EQ(got.size(), stream ? 9u : 1u);
    const pb::GenerateRequest taken = engine.requests().back();
    EXPECT_THAT(taken.request_id(), StartsWith("bfio-"));
    pb::GenerateRequest same = request;
    same.set_request_id(taken.request_id());
    EXPECT_EQ(taken.SerializeAsString(), same.SerializeAsString());
  }
}

// SGLang's servicer reports in the metadata whether the error was in the grammar.
TEST_F(SglangEngines, AnErrorPassesWithItsTrailingMetadata) {
  const HeldPort port;
  ScriptedSglang engine(port.address());
  Serve({port.address()});
  pb::GenerateRequest request = Request(8);
  request.mutable_tokenized()->set_input_ids(0, kBadRequest);
  grpc::ClientContext context;
  const auto reader = stub_->Generate(&context, request);
  pb::GenerateResponse response;
  EXPECT_FALSE(reader->Read(&response));
  EXPECT_EQ(reader->Finish().error_code(), grpc::StatusCode::FAILED_PRECONDITION);
  const auto trailers = context.GetServerTrailingMetadata();
  const auto failed = trailers.find("smg-constraint-failed");
  ASSERT_NE(failed, trailers.end());
  EXPECT_EQ(std::string(failed->second.data(), failed->second.size()), "engine");
}

TEST_F(SglangEngines, ARequestMovesWithItsTokensAndCounts) {
  const HeldPort a, b;
  ScriptedSglang one(a.address()), two(b.address());
  Serve({a.address(), b.address()});
  std::vector<std::unique_ptr<Call>> calls;
  for (int i = 0; i < 8; ++i) {
    calls.push_back(std::make_unique<Call>(*stub_, Request(300)));
    ASSERT_TRUE(calls.back()->Read());
  }
  ASSERT_GT(one.requests().size(), 0u);
  one.Kill();
  for (const auto& call : calls) {
    const Outputs& outputs = call->End();
    ASSERT_TRUE(outputs.status.ok()) << outputs.status.error_message();
    EXPECT_EQ(outputs.tokens.at(0), TokensAfter({1, 2, 3, 4, 5, 6, 7}, 300));
    EXPECT_EQ(outputs.ends.at(0).prompt_tokens(), 7u);
    EXPECT_EQ(outputs.ends.at(0).completion_tokens(), 300u);
  }
}

// SGLang's messages count the output's tokens so far, so missing, repeated or misordered messages are
// noticed, also before a stop.
TEST_F(SglangEngines, ABrokenStreamIsNeverSilentlyShort) {
  const HeldPort port;
  ScriptedSglang engine(port.address());
  Serve({port.address()});
  for (const uint32_t fault : {kTwice, kMissing, kSwapped}) {
    SCOPED_TRACE(fault);
    const GenerateResult own = testing::Generate(cluster_->inference(), OwnRequest({fault, 2}, 10));
    EXPECT_EQ(own.status.error_code(), grpc::StatusCode::DATA_LOSS);
    const Tokens all = TokensAfter({fault, 2}, 10);
    EXPECT_THAT(own.tokens, ::testing::ElementsAreArray(all.begin(), all.begin() + std::ssize(own.tokens)));
    pb::GenerateRequest request = Request(10);
    request.mutable_tokenized()->set_input_ids(0, fault);
    EXPECT_EQ(Call(*stub_, request).End().status.error_code(), grpc::StatusCode::DATA_LOSS);
  }
  EXPECT_EQ(testing::Generate(cluster_->inference(), OwnRequest({kInternal, 2}, 10)).status.error_code(),
            grpc::StatusCode::INTERNAL);
  // These requests continue, three tokens at a time.
  for (const uint32_t fault : {kUnavailable, kEngineAbort}) {
    SCOPED_TRACE(fault);
    const GenerateResult moved = testing::Generate(cluster_->inference(), OwnRequest({fault, 2}, 9));
    EXPECT_TRUE(moved.status.ok()) << moved.status.error_message();
    EXPECT_EQ(moved.tokens, TokensAfter({fault, 2}, 9));
  }
}

TEST_F(SglangEngines, RequestsThatAllowResamplingMove) {
  const HeldPort a, b;
  ScriptedSglang one(a.address()), two(b.address());
  Serve({a.address(), b.address()});
  pb::GenerateRequest request = Request(300);
  request.mutable_sampling_params()->set_temperature(1);
  std::vector<std::unique_ptr<Call>> calls;
  for (int i = 0; i < 8; ++i) {
    calls.push_back(
        std::make_unique<Call>(*stub_, request, absl::InfiniteDuration(),
                               std::map<std::string, std::string>{{"bfio-may-resample", "true"}}));
    ASSERT_TRUE(calls.back()->Read());
  }
  ASSERT_GT(one.requests().size(), 0u);
  one.Kill();
  for (const auto& call : calls) {
    EXPECT_TRUE(call->End().status.ok()) << call->outputs().status.error_message();
    EXPECT_EQ(call->outputs().tokens.at(0).size(), 300u);
  }
}

TEST_F(SglangEngines, AClientThatLeavesIsAborted) {
  const HeldPort port;
  ScriptedSglang engine(port.address());
  Serve({port.address()});
  Call call(*stub_, Request(2'000));
  ASSERT_TRUE(call.Read());
  call.Cancel();
  const std::string name = engine.requests().at(0).request_id();
  Eventually([&] { return engine.aborted().contains(name); });
  EXPECT_THAT(engine.aborted(), ::testing::ElementsAre(name));
}

// The engine aborts every request whose name begins with the given one.
TEST_F(SglangEngines, AClientThatLeavesEndsNoOtherRequest) {
  const HeldPort port;
  ScriptedSglang engine(port.address());
  Serve({port.address()});
  const auto of_one_rank = [](uint32_t output) {
    pb::GenerateRequest request = Request(output);
    request.set_data_parallel_rank(0);
    return request;
  };
  Call leaves(*stub_, of_one_rank(4'000));
  ASSERT_TRUE(leaves.Read());
  const std::string name = engine.requests().at(0).request_id();
  const std::string number = name.substr(0, name.find_last_not_of('-') + 1);
  // Makes calls until a call's number begins with the earlier call's number.
  do {
    ASSERT_TRUE(Generate(*stub_, of_one_rank(1)).status.ok());
  } while (!engine.requests().back().request_id().starts_with(number));
  // Sampled, so that another engine could not continue it.
  pb::GenerateRequest request = of_one_rank(300);
  request.mutable_sampling_params()->set_temperature(1);
  std::vector<std::unique_ptr<Call>> calls;
  for (int i = 0; i < 5; ++i) {
    calls.push_back(std::make_unique<Call>(*stub_, request));
    ASSERT_TRUE(calls.back()->Read());
  }
  leaves.Cancel();
  Eventually([&] { return engine.aborted().contains(name); });
  for (const auto& call : calls) {
    EXPECT_TRUE(call->End().status.ok()) << call->outputs().status.error_message();
    EXPECT_EQ(call->outputs().tokens.at(0).size(), 300u);
  }
}

}  // namespace
}  // namespace bfio::testing::sglang
