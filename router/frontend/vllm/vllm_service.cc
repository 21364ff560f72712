#include "router/frontend/vllm/vllm_service.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "common/base/clock.h"
#include "common/net/status.h"
#include "router/frontend/vllm/answers.h"
#include "router/requests/check_request.h"

namespace bfio::router::vllm {
namespace {

constexpr char kTenantHeader[] = "bfio-tenant";

template <typename Request, typename Response>
using Answer = std::function<void(const std::shared_ptr<UnaryCall<Request, Response>>&, const Request&)>;

// Several requests that one call aborts: it is answered when the last of them is.
struct PendingAborts {
  explicit PendingAborts(size_t count) : left(count) {}
  std::atomic<size_t> left;
};

}  // namespace

VllmService::VllmService(RequestHandler* handler, Authenticator* authenticator, FirstMessages* messages,
                         VllmOptions options)
    : handler_(handler),
      authenticator_(authenticator),
      messages_(messages),
      options_(std::move(options)),
      started_(MonotonicNow()),
      feed_(handler) {
  Add<pb::GenerateRequest, pb::GenerateResponse>(
      "/vllm.grpc.engine.VllmEngine/Generate",
      [this](grpc::CallbackServerContext* context) { return Generate(context); });
  Add<pb::AbortRequest, pb::AbortResponse>(
      "/vllm.grpc.engine.VllmEngine/Abort",
      [this](grpc::CallbackServerContext* context) { return Abort(context); });
  Add<common_pb::GetTokenizerRequest, common_pb::GetTokenizerChunk>(
      "/vllm.grpc.engine.VllmEngine/GetTokenizer", [this](grpc::CallbackServerContext* context) {
        return StreamTokenizer(context, authenticator_->Check(*context), messages_, options_.model);
      });
  Add<common_pb::SubscribeKvEventsRequest, common_pb::KvEventBatch>(
      "/vllm.grpc.engine.VllmEngine/SubscribeKvEvents", [this](grpc::CallbackServerContext* context) {
        return feed_.Subscribe(context, authenticator_->Check(*context), messages_);
      });
  AddInformation();
}

void VllmService::AddInformation() {
  const auto add = [this]<typename Request, typename Response>(const char* method,
                                                               Answer<Request, Response> answer) {
    using Call = UnaryCall<Request, Response>;
    Add<Request, Response>(method, [this, answer](grpc::CallbackServerContext* context) {
      return Call::Begin(context, authenticator_->Check(*context), messages_, answer);
    });
  };
  // What is said of the loads.
  const auto with_loads = [this](const auto& call, auto fill) {
    const absl::Status asked =
        handler_->GetLoads(std::nullopt, [call, fill](const absl::StatusOr<Loads>& loads) {
          if (!loads.ok()) return call->Reply(loads.status());
          call->Reply(fill(*loads));
        });
    if (!asked.ok()) call->Reply(asked);
  };
  add("/vllm.grpc.engine.VllmEngine/HealthCheck",
      Answer<pb::HealthCheckRequest, pb::HealthCheckResponse>([this](const auto& call, const auto&) {
        pb::HealthCheckResponse response;
        response.set_healthy(handler_->GetServing().ready);
        response.set_message(response.healthy() ? "serving" : "the router waits for its workers");
        call->Reply(std::move(response));
      }));
  add("/vllm.grpc.engine.VllmEngine/GetModelInfo",
      Answer<pb::GetModelInfoRequest, pb::GetModelInfoResponse>([this](const auto& call, const auto&) {
        call->Reply(ModelInfo(options_.model_name, options_.model.get(), handler_->GetServing()));
      }));
  add("/vllm.grpc.engine.VllmEngine/GetServerInfo",
      Answer<pb::GetServerInfoRequest, pb::GetServerInfoResponse>(
          [this, with_loads](const auto& call, const auto&) {
            with_loads(call, [uptime = MonotonicNow() - started_](const Loads& loads) {
              return ServerInfo(loads, uptime);
            });
          }));
  add("/vllm.grpc.engine.VllmEngine/GetLoads",
      Answer<pb::GetLoadsRequest, pb::GetLoadsResponse>([with_loads](const auto& call, const auto& request) {
        if (request.dp_rank() != 0) {
          return call->Reply(absl::NotFoundError(absl::StrCat(
              "dp_rank is ", request.dp_rank(), "; the router reports a data_parallel_size of 1")));
        }
        with_loads(call, LoadsResponse);
      }));
}

absl::StatusOr<VllmService::Caller> VllmService::CallerOf(const grpc::CallbackServerContext& context) {
  absl::StatusOr<std::optional<std::string>> name = authenticator_->Caller(context);
  if (!name.ok()) return name.status();
  Caller caller{*std::move(name), context.peer(), ""};
  const auto tenant = context.client_metadata().find(kTenantHeader);
  if (tenant != context.client_metadata().end())
    caller.tenant.assign(tenant->second.data(), tenant->second.size());
  // In a message protobuf would see to it; and tenants are names in metrics and logs.
  if (!std::all_of(caller.tenant.begin(), caller.tenant.end(), absl::ascii_isgraph))
    return absl::InvalidArgumentError(absl::StrCat(kTenantHeader, " is not printable ASCII without spaces"));
  return caller;
}

// --- Generate ---

GenerateStream* VllmService::Generate(grpc::CallbackServerContext* context) {
  absl::StatusOr<Caller> caller = CallerOf(*context);
  const absl::Status allowed = caller.status();
  GenerateStream::Options options;
  options.traceparent = TraceparentOf(*context);
  options.limits = options_.stream_limits;
  options.open = &streams_;
  options.cancel = [handler = handler_](core::RequestId id, bool timed_out) {
    handler->Cancel(id, timed_out);
  };
  if (caller.ok()) {
    options.on_request = [this, from = *std::move(caller)](const std::shared_ptr<GenerateStream>& stream,
                                                           pb::GenerateRequest request) {
      return Submit(std::move(request), from, stream);
    };
  }
  const std::shared_ptr<GenerateStream> stream = GenerateStream::Create(context, std::move(options));
  stream->Begin(allowed, messages_);
  return stream.get();  // kept alive by itself until OnDone
}

absl::Status VllmService::Submit(pb::GenerateRequest request, const Caller& caller,
                                 const std::shared_ptr<GenerateStream>& stream) {
  std::string tenant = caller.tenant;
  if (absl::Status status = authenticator_->CheckTenant(caller.name, caller.peer, tenant); !status.ok())
    return status;
  RequestContext context{options_.request_limits, handler_->GetServing().max_sequence_tokens, ""};
  if (options_.model == nullptr) {
    context.no_stop_texts = "it has none";
  } else if (options_.model->text == nullptr) {
    context.no_stop_texts = options_.model->why_no_text;
  }
  absl::StatusOr<ConvertedRequest> converted = Convert(request, std::move(tenant), context);
  if (!converted.ok()) return converted.status();
  request = pb::GenerateRequest();  // its prompt is in `converted`, and would be there twice
  if (converted->request.request_id.empty()) converted->request.request_id = options_.new_request_id();
  return SubmitOutputs(*std::move(converted), stream);
}

absl::Status VllmService::SubmitOutputs(ConvertedRequest converted,
                                        const std::shared_ptr<GenerateStream>& stream) {
  GenerateStream::Shape shape;
  for (uint32_t i = 0; i < converted.outputs; ++i) shape.ids.push_back(handler_->NextId());
  const std::vector<core::RequestId> ids = shape.ids;
  shape.stream = converted.stream;
  shape.prompt_tokens = converted.request.prompt_tokens;
  shape.stop_token_ids = converted.request.stop_token_ids;
  if (!converted.stops.empty())
    shape.stop_text.emplace(options_.model->text, std::move(converted.stops), converted.special_text);
  if (ids.size() > 1) Remember(converted.request, stream);
  const std::vector<std::shared_ptr<TokenSink>> sinks = stream->BeginOutputs(std::move(shape));
  for (uint32_t i = 0; i < ids.size(); ++i) {
    const absl::Status status = handler_->Submit(ids[i], OutputRequest(converted.request, i), sinks[i]);
    if (status.ok()) continue;
    for (uint32_t before = 0; before < i; ++before) handler_->Cancel(ids[before], /*timed_out=*/false);
    return status;
  }
  return absl::OkStatus();
}

// --- Abort ---

void VllmService::Remember(const ClientRequest& request, const std::shared_ptr<GenerateStream>& stream) {
  MutexLock lock(&mutex_);
  if (several_.size() >= sweep_at_) {
    absl::erase_if(several_, [](const auto& entry) { return entry.second.expired(); });
    sweep_at_ = std::max<size_t>(64, 2 * several_.size());
  }
  // A second one of that name is refused by the router while the first is live.
  std::weak_ptr<GenerateStream>& there = several_[Name(request.tenant, request.request_id)];
  if (const auto first = there.lock(); first != nullptr && !first->LiveOutputs().empty()) return;
  there = stream;
}

std::vector<std::string> VllmService::OutputNames(const std::string& tenant, const std::string& request_id) {
  std::shared_ptr<GenerateStream> stream;
  {
    MutexLock lock(&mutex_);
    const auto it = several_.find(Name(tenant, request_id));
    if (it != several_.end()) stream = it->second.lock();
  }
  if (stream == nullptr) return {request_id};
  std::vector<std::string> names;
  for (const uint32_t index : stream->LiveOutputs()) names.push_back(OutputName(request_id, index));
  return names;
}

VllmService::AbortCall* VllmService::Abort(grpc::CallbackServerContext* context) {
  absl::StatusOr<Caller> caller = CallerOf(*context);
  const absl::Status allowed = caller.status();
  return AbortCall::Begin(context, allowed, messages_,
                          [this, caller = std::move(caller)](const std::shared_ptr<AbortCall>& call,
                                                             const pb::AbortRequest& request) {
                            AbortAll(call, request, *caller);
                          });
}

void VllmService::AbortAll(const std::shared_ptr<AbortCall>& call, const pb::AbortRequest& request,
                           const Caller& caller) {
  std::string tenant = caller.tenant;
  absl::Status status = authenticator_->CheckTenant(caller.name, caller.peer, tenant);
  if (!status.ok()) return call->Reply(status);
  if (request.request_ids_size() > kMaxAborts) {
    return call->Reply(OutOfRange("the number of request_ids", request.request_ids_size(),
                                  absl::StrCat("at most ", kMaxAborts)));
  }
  std::vector<std::string> names;
  for (const std::string& id : request.request_ids()) {
    for (std::string& name : OutputNames(tenant, id)) names.push_back(std::move(name));
  }
  if (names.empty()) return call->Reply(pb::AbortResponse());
  const auto pending = std::make_shared<PendingAborts>(names.size());
  for (std::string& name : names) {
    status = handler_->Abort({tenant, std::move(name), /*resume_token=*/""},
                             // Whether there was such a request is not said, as vLLM does not.
                             [call, pending](const absl::StatusOr<bool>& found) {
                               if (!found.ok()) return call->Reply(found.status());
                               if (pending->left.fetch_sub(1) == 1) call->Reply(pb::AbortResponse());
                             });
    if (!status.ok()) return call->Reply(status);
  }
}

}  // namespace bfio::router::vllm
