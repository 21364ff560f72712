#include "tools/client/client.h"

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/base/address.h"
#include "common/base/status_macros.h"
#include "common/net/channel.h"
#include "common/net/exposure.h"
#include "common/net/status.h"
#include "tools/client/stream_call.h"

namespace bfio::client {
absl::StatusOr<std::unique_ptr<Client>> Client::Create(const ClientOptions& options) {
  BFIO_ASSIGN_OR_RETURN(const Target router, ParseTarget(options.target, options.tls.enabled()));
  BFIO_RETURN_IF_ERROR(CheckTlsFiles(options.tls, "client_tls", TlsEnd::kClient));
  BFIO_RETURN_IF_ERROR(CheckMetadata({{"authorization", options.token}}));
  if (!options.token.empty() && !options.tls.enabled() && !IsLoopback(router)) {
    return absl::InvalidArgumentError(
        absl::StrCat("the token would go to ", options.target, " unencrypted; give --client_tls=ca=FILE"));
  }
  return std::unique_ptr<Client>(
      new Client(options.token, NewChannel(router.ToString(), 0, ChannelCredentials(options.tls))));
}

std::unique_ptr<TokenStream> Client::Generate(v1::GenerateRequest request, CallOptions options) {
  if (options.token.empty()) options.token = token_;
  return std::make_unique<TokenStream>(link_, std::move(request), std::move(options));
}

absl::StatusOr<Generated> Client::GenerateAll(
    v1::GenerateRequest request, CallOptions options,
    const std::function<void(uint32_t, absl::Span<const uint32_t>)>& on_tokens) {
  const std::unique_ptr<TokenStream> stream = Generate(std::move(request), std::move(options));
  Generated result;
  for (;;) {
    TokenStream::Event event = stream->Next();
    if (auto* tokens = std::get_if<Tokens>(&event)) {
      if (on_tokens) on_tokens(tokens->first_index, tokens->ids);
      result.token_ids.insert(result.token_ids.end(), tokens->ids.begin(), tokens->ids.end());
    } else if (auto* finish = std::get_if<v1::Finish>(&event)) {
      result.request_id = stream->request_id();
      result.finish = std::move(*finish);
      return result;
    } else if (auto* status = std::get_if<absl::Status>(&event)) {
      return *status;
    }
  }
}

template <typename Request, typename Response>
absl::Status Client::Call(absl::Duration timeout, const Request& request, Response& response,
                          grpc::Status (v1::Inference::Stub::*method)(grpc::ClientContext*, const Request&,
                                                                      Response*)) {
  grpc::ClientContext context;
  context.set_deadline(absl::ToChronoTime(absl::Now() + timeout));
  for (const auto& [name, value] : BearerToken(token_)) context.AddMetadata(name, value);
  return FromGrpcStatus((link_.stub().*method)(&context, request, &response));
}

absl::StatusOr<bool> Client::Abort(const std::string& request_id, const std::string& resume_token,
                                   absl::Duration timeout, const std::string& tenant) {
  v1::AbortRequest request;
  request.set_tenant(tenant);
  request.set_request_id(request_id);
  request.set_resume_token(resume_token);
  v1::AbortResponse response;
  BFIO_RETURN_IF_ERROR(Call(timeout, request, response, &v1::Inference::Stub::Abort));
  return response.found();
}

absl::StatusOr<v1::GetLoadsResponse> Client::GetLoads(std::optional<uint32_t> dp_rank,
                                                      absl::Duration timeout) {
  v1::GetLoadsRequest request;
  if (dp_rank.has_value()) request.set_dp_rank(*dp_rank);
  v1::GetLoadsResponse response;
  BFIO_RETURN_IF_ERROR(Call(timeout, request, response, &v1::Inference::Stub::GetLoads));
  return response;
}

}  // namespace bfio::client
