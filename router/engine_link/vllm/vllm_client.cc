#include "router/engine_link/vllm/vllm_client.h"

#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/net/status.h"
#include "engines/vllm.grpc.pb.h"

namespace bfio::router::vllm {
namespace {

namespace pb = ::vllm::grpc::engine;

// Of one answer: a message holds the tokens of a step, and those of its prompt where they were asked for,
// which they are not.
constexpr int kMaxMessageBytes = 4 << 20;

using Stub = pb::VllmEngine::Stub;
using AsyncStub = pb::VllmEngine::StubInterface::async_interface;

// A call with one answer; deletes itself when it is over.
template <typename Request, typename Response>
class Question {
 public:
  using Done = absl::AnyInvocable<void(absl::StatusOr<Response>) &&>;
  using Method = void (AsyncStub::*)(grpc::ClientContext*, const Request*, Response*,
                                     std::function<void(grpc::Status)>);

  static void Ask(const std::shared_ptr<Stub>& stub, Method method, absl::Duration timeout, Done done) {
    auto* question = new Question(stub, std::move(done));
    question->context_.set_deadline(std::chrono::system_clock::now() + absl::ToChronoMilliseconds(timeout));
    AsyncStub* const async = stub->async();
    (async->*method)(&question->context_, &question->request_, &question->response_,
                     [question](const grpc::Status& status) {
                       if (status.ok()) {
                         std::move(question->done_)(std::move(question->response_));
                       } else {
                         std::move(question->done_)(FromGrpcStatus(status));
                       }
                       delete question;
                     });
  }

 private:
  Question(std::shared_ptr<Stub> stub, Done done) : stub_(std::move(stub)), done_(std::move(done)) {}

  const std::shared_ptr<Stub> stub_;
  grpc::ClientContext context_;
  Request request_;
  Response response_;
  Done done_;
};

using AskServer = Question<pb::GetServerInfoRequest, pb::GetServerInfoResponse>;
using AskModel = Question<pb::GetModelInfoRequest, pb::GetModelInfoResponse>;
using AskLoads = Question<pb::GetLoadsRequest, pb::GetLoadsResponse>;
using AskHealth = Question<pb::HealthCheckRequest, pb::HealthCheckResponse>;

pb::GenerateRequest ToWire(const EngineCall& call, int32_t rank, const std::string& name) {
  pb::GenerateRequest request;
  request.set_request_id(name);
  request.mutable_tokenized()->mutable_input_ids()->Add(call.prompt.begin(), call.prompt.end());
  request.set_stream(true);
  request.set_data_parallel_rank(rank);
  pb::SamplingParams& sampling = *request.mutable_sampling_params();
  sampling.set_max_tokens(call.max_new_tokens);
  sampling.mutable_stop_token_ids()->Add(call.stop_token_ids.begin(), call.stop_token_ids.end());
  sampling.set_ignore_eos(call.ignore_eos);
  sampling.set_n(1);
  if (call.sampling.temperature) sampling.set_temperature(*call.sampling.temperature);
  if (call.sampling.top_p) sampling.set_top_p(*call.sampling.top_p);
  if (call.sampling.top_k) sampling.set_top_k(*call.sampling.top_k);
  // vLLM's is an int32 that must not be negative.
  if (call.sampling.seed)
    sampling.set_seed(static_cast<int32_t>(*call.sampling.seed & std::numeric_limits<int32_t>::max()));
  return request;
}

EngineFinish FinishOf(const std::string& reason) {
  if (reason == "stop") return EngineFinish::kStop;
  if (reason == "length") return EngineFinish::kLength;
  return reason == "abort" ? EngineFinish::kAbort : EngineFinish::kError;
}

// Keeps itself until the call is over.
class VllmStream final : public EngineStream, public grpc::ClientReadReactor<pb::GenerateResponse> {
 public:
  VllmStream(std::shared_ptr<Stub> stub, pb::GenerateRequest request, EngineClient::StreamCallbacks callbacks)
      : stub_(std::move(stub)),
        left_(request.sampling_params().max_tokens()),
        request_(std::move(request)),
        callbacks_(std::move(callbacks)) {}

  static std::shared_ptr<VllmStream> Start(std::shared_ptr<VllmStream> stream) {
    stream->self_ = stream;
    stream->stub_->async()->Generate(&stream->context_, &stream->request_, stream.get());
    stream->StartRead(&stream->response_);
    stream->StartCall();
    return stream;
  }

  void Cancel() override { context_.TryCancel(); }

  void OnReadDone(bool ok) override {
    if (!ok) return;
    if (absl::Status status = Take(); !status.ok()) {
      broken_ = std::move(status);
      context_.TryCancel();
      return;
    }
    StartRead(&response_);
  }

  void OnDone(const grpc::Status& status) override {
    const std::shared_ptr<VllmStream> last = std::move(self_);
    absl::StatusOr<EngineFinish> end = absl::UnknownError("");
    if (!broken_.ok()) {
      end = broken_;
    } else if (finish_) {
      end = *finish_;
    } else if (!status.ok()) {
      end = FromGrpcStatus(status);
    } else {
      end = absl::DataLossError("the engine ended the stream without saying why");
    }
    std::move(callbacks_.on_end)(std::move(end));
  }

 private:
  absl::Status Take() {
    if (response_.has_complete()) {
      if (response_.complete().index() != 0) return WrongOutput(response_.complete().index());
      finish_ = FinishOf(response_.complete().finish_reason());
      return absl::OkStatus();  // its output_ids repeat the last chunk's
    }
    const pb::GenerateStreamChunk& chunk = response_.chunk();
    if (chunk.index() != 0) return WrongOutput(chunk.index());
    if (chunk.token_ids().empty()) return absl::OkStatus();
    if (finish_) return absl::DataLossError("the engine sent tokens after the end of the output");
    if (static_cast<uint32_t>(chunk.token_ids_size()) > left_)
      return absl::DataLossError("the engine sent more tokens than were asked for");
    left_ -= static_cast<uint32_t>(chunk.token_ids_size());
    callbacks_.on_tokens({chunk.token_ids().begin(), chunk.token_ids().end()});
    return absl::OkStatus();
  }

  static absl::Status WrongOutput(uint32_t index) {
    return absl::DataLossError(absl::StrCat("the engine sent output ", index, " of a request with one"));
  }

  const std::shared_ptr<Stub> stub_;
  // Tokens that may still come.
  uint32_t left_;
  const pb::GenerateRequest request_;
  EngineClient::StreamCallbacks callbacks_;
  grpc::ClientContext context_;
  pb::GenerateResponse response_;
  std::optional<EngineFinish> finish_;
  absl::Status broken_;
  std::shared_ptr<VllmStream> self_;
};

class VllmClient final : public EngineClient {
 public:
  explicit VllmClient(const std::string& server) {
    grpc::ChannelArguments arguments;
    // Python's gRPC servers end connections on which pings come every few seconds; the link's health checks
    // are what finds out that a server is gone.
    arguments.SetMaxReceiveMessageSize(kMaxMessageBytes);
    arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 100);
    arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 2000);
    // Clients to different servers share nothing.
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    stub_ = pb::VllmEngine::NewStub(
        grpc::CreateCustomChannel(server, grpc::InsecureChannelCredentials(), arguments));
  }

  void Describe(absl::Duration timeout,
                absl::AnyInvocable<void(absl::StatusOr<EngineDescription>) &&> done) override {
    AskServer::Ask(stub_, &AsyncStub::GetServerInfo, timeout,
                   [stub = stub_, timeout, done = std::move(done)](auto server) mutable {
                     if (!server.ok()) return std::move(done)(server.status());
                     EngineDescription description;
                     description.ranks = std::max(1, server->data_parallel_size());
                     description.slots = server->max_num_seqs();
                     DescribeModel(stub, timeout, std::move(description), std::move(done));
                   });
  }

  void CheckHealth(absl::Duration timeout, absl::AnyInvocable<void(absl::Status) &&> done) override {
    AskHealth::Ask(stub_, &AsyncStub::HealthCheck, timeout, [done = std::move(done)](auto health) mutable {
      if (health.ok() && !health->healthy())
        health = absl::UnavailableError(absl::StrCat("it is not healthy: ", health->message()));
      std::move(done)(health.status());
    });
  }

  void GetLoads(absl::Duration timeout,
                absl::AnyInvocable<void(absl::StatusOr<std::vector<EngineLoad>>) &&> done) override {
    AskLoads::Ask(stub_, &AsyncStub::GetLoads, timeout, [done = std::move(done)](auto response) mutable {
      if (!response.ok()) return std::move(done)(response.status());
      std::vector<EngineLoad> loads;
      for (const pb::SchedulerLoad& load : response->loads()) {
        if (load.dp_rank() != std::ssize(loads)) break;
        loads.push_back({int64_t{load.num_running_reqs()} + load.num_waiting_reqs(),
                         std::max<int64_t>(0, load.num_used_tokens())});
      }
      std::move(done)(std::move(loads));
    });
  }

  std::shared_ptr<EngineStream> Generate(const EngineCall& call, int32_t rank, const std::string& name,
                                         StreamCallbacks callbacks) override {
    return VllmStream::Start(
        std::make_shared<VllmStream>(stub_, ToWire(call, rank, name), std::move(callbacks)));
  }

 private:
  using Described = absl::AnyInvocable<void(absl::StatusOr<EngineDescription>) &&>;

  static void DescribeModel(const std::shared_ptr<Stub>& stub, absl::Duration timeout,
                            EngineDescription description, Described done) {
    AskModel::Ask(
        stub, &AsyncStub::GetModelInfo, timeout,
        [stub, timeout, description = std::move(description), done = std::move(done)](auto model) mutable {
          if (!model.ok()) return std::move(done)(model.status());
          description.max_sequence_tokens = model->max_context_length();
          description.vocabulary = model->vocab_size();
          description.model =
              model->served_model_name().empty() ? model->model_path() : model->served_model_name();
          DescribeLoads(stub, timeout, std::move(description), std::move(done));
        });
  }

  static void DescribeLoads(const std::shared_ptr<Stub>& stub, absl::Duration timeout,
                            EngineDescription description, Described done) {
    AskLoads::Ask(stub, &AsyncStub::GetLoads, timeout,
                  [description = std::move(description), done = std::move(done)](auto loads) mutable {
                    // Older servers do not have it; the sizes are those of every rank.
                    if (!loads.ok() && !absl::IsUnimplemented(loads.status()))
                      return std::move(done)(loads.status());
                    if (loads.ok() && loads->loads_size() > 0) {
                      const pb::SchedulerLoad& load = loads->loads(0);
                      description.kv_tokens = load.max_total_num_tokens();
                      if (description.slots == 0) description.slots = load.max_running_requests();
                    }
                    std::move(done)(std::move(description));
                  });
  }

  std::shared_ptr<Stub> stub_;
};

}  // namespace

std::unique_ptr<EngineClient> NewVllmClient(const std::string& server) {
  return std::make_unique<VllmClient>(server);
}

}  // namespace bfio::router::vllm
