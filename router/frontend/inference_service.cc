#include "router/frontend/inference_service.h"

#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "common/net/finish_call.h"
#include "common/net/status.h"
#include "common/net/wire_time.h"
#include "common/telemetry/trace_context.h"
#include "router/frontend/client_stream.h"
#include "router/frontend/generate_request.h"

namespace bfio::router {
namespace {

std::string TraceparentOf(const grpc::CallbackServerContext& context) {
  const auto trace = context.client_metadata().find("traceparent");
  if (trace == context.client_metadata().end()) return {};
  const absl::string_view value(trace->second.data(), trace->second.size());
  return TraceIdOf(value).empty() ? std::string() : std::string(value);
}

void Fill(const Loads& loads, v1::GetLoadsResponse& out) {
  SetTimestamp(loads.timestamp, out.mutable_timestamp());
  out.set_version(loads.version);
  out.set_dp_rank_count(loads.ranks);
  for (const RankLoad& from : loads.loads) {
    v1::SchedulerLoad& load = *out.add_loads();
    load.set_dp_rank(from.rank);
    load.set_num_running_reqs(static_cast<uint32_t>(from.running_requests));
    load.set_num_waiting_reqs(static_cast<uint32_t>(from.waiting_requests));
    load.set_num_total_reqs(static_cast<uint32_t>(from.running_requests + from.waiting_requests));
    load.set_num_used_tokens(static_cast<uint64_t>(from.used_tokens));
    load.set_max_total_num_tokens(static_cast<uint64_t>(from.max_tokens));
    load.set_token_usage(static_cast<double>(from.used_tokens) / static_cast<double>(from.max_tokens));
    load.set_gen_throughput(from.tokens_per_second);
    load.set_utilization(static_cast<double>(from.running_requests) / static_cast<double>(from.slots));
    load.set_max_running_requests(static_cast<uint32_t>(from.slots));
  }
}

}  // namespace

grpc::ServerWriteReactor<v1::GenerateResponse>* InferenceService::Generate(
    grpc::CallbackServerContext* context, const v1::GenerateRequest* request) {
  const core::RequestId id = handler_->NextId();
  std::string request_id = request->request_id().empty() ? secrets_.new_request_id() : request->request_id();
  ClientStream::Options options;
  options.id = id;
  options.request_id = request_id;
  options.traceparent = TraceparentOf(*context);
  options.limits = stream_limits_;
  options.on_cancel = [handler = handler_, id](bool timed_out) { handler->Cancel(id, timed_out); };
  const std::shared_ptr<ClientStream> stream = ClientStream::Create(context, std::move(options));
  const absl::Status status = Submit(*context, *request, std::move(request_id), id, stream);
  if (!status.ok() && stream->End(status, std::nullopt)) stream->Flush();
  return stream.get();  // kept alive by itself until OnDone
}

absl::Status InferenceService::Submit(const grpc::CallbackServerContext& context,
                                      const v1::GenerateRequest& request, std::string request_id,
                                      core::RequestId id, std::shared_ptr<ClientStream> stream) {
  std::string tenant = request.tenant();
  if (absl::Status status = authenticator_->CheckTenant(context, tenant); !status.ok()) return status;
  absl::StatusOr<ClientRequest> converted =
      ToClientRequest(request, std::move(request_id), std::move(tenant), request_limits_);
  if (!converted.ok()) return converted.status();
  const absl::Time now = absl::Now();
  converted->resume_proven = secrets_.tickets.Proves(request.resume_ticket(), *converted, now);
  stream->SetResumeTicket(secrets_.tickets.Issue(*converted, absl::FromChrono(context.deadline()), now));
  return handler_->Submit(id, *std::move(converted), std::move(stream));
}

grpc::ServerUnaryReactor* InferenceService::Abort(grpc::CallbackServerContext* context,
                                                  const v1::AbortRequest* request,
                                                  v1::AbortResponse* response) {
  std::string tenant = request->tenant();
  if (absl::Status status = authenticator_->CheckTenant(*context, tenant); !status.ok())
    return FinishNow(context, status);
  grpc::ServerUnaryReactor* const reactor = context->DefaultReactor();
  const absl::Status asked =
      handler_->Abort({std::move(tenant), request->request_id(), request->resume_token()},
                      [reactor, response](absl::StatusOr<bool> found) {
                        if (found.ok()) response->set_found(*found);
                        reactor->Finish(ToGrpcStatus(found.status()));
                      });
  if (!asked.ok()) reactor->Finish(ToGrpcStatus(asked));
  return reactor;
}

grpc::ServerUnaryReactor* InferenceService::GetLoads(grpc::CallbackServerContext* context,
                                                     const v1::GetLoadsRequest* request,
                                                     v1::GetLoadsResponse* response) {
  if (absl::Status status = authenticator_->Check(*context); !status.ok()) return FinishNow(context, status);
  std::optional<uint32_t> rank;
  if (request->has_dp_rank()) rank = request->dp_rank();
  grpc::ServerUnaryReactor* const reactor = context->DefaultReactor();
  const absl::Status asked = handler_->GetLoads(rank, [reactor, response](absl::StatusOr<Loads> loads) {
    if (loads.ok()) Fill(*loads, *response);
    reactor->Finish(ToGrpcStatus(loads.status()));
  });
  if (!asked.ok()) reactor->Finish(ToGrpcStatus(asked));
  return reactor;
}

}  // namespace bfio::router
