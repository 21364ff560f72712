#include "tools/client/client.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/base/address.h"
#include "common/base/status_macros.h"
#include "common/net/channel.h"
#include "common/net/exposure.h"
#include "common/net/status.h"
#include "tools/client/link.h"
#include "tools/client/metadata.h"

namespace bfio::client {
namespace {

void Prepare(grpc::ClientContext& context, const std::string& token, absl::Duration timeout) {
  context.set_deadline(absl::ToChronoTime(absl::Now() + timeout));
  for (const auto& [name, value] : BearerToken(token)) context.AddMetadata(name, value);
}

}  // namespace

absl::StatusOr<std::unique_ptr<Client>> Client::Create(const ClientOptions& options) {
  BFIO_ASSIGN_OR_RETURN(const Target router, ParseTarget(options.target, options.tls.enabled()));
  BFIO_RETURN_IF_ERROR(CheckTlsFiles(options.tls, "client_tls", TlsEnd::kClient));
  BFIO_RETURN_IF_ERROR(CheckMetadata({{"authorization", options.token}}));
  const bool private_link = options.tls.enabled() || IsLoopback(router);
  if (!options.token.empty() && !private_link) {
    return absl::InvalidArgumentError(
        absl::StrCat("the token would go to ", options.target, " unencrypted; give --client_tls=ca=FILE"));
  }
  const std::shared_ptr<grpc::ChannelCredentials> credentials = ChannelCredentials(options.tls);
  std::vector<std::unique_ptr<Link>> links;
  for (int i = 0; i < std::max(options.connections, 1); ++i) {
    links.push_back(std::make_unique<Link>(NewChannel(router.ToString(), i, credentials)));
  }
  return std::unique_ptr<Client>(new Client(options.token, private_link, std::move(links)));
}

Client::Client(std::string token, bool private_link, std::vector<std::unique_ptr<Link>> links)
    : token_(std::move(token)), private_link_(private_link), links_(std::move(links)) {}
Client::~Client() = default;

Link& Client::NextLink() {
  return *links_[next_link_.fetch_add(1, std::memory_order_relaxed) % links_.size()];
}

std::unique_ptr<TokenStream> Client::Generate(v1::GenerateRequest request, CallOptions options) {
  if (options.token.empty()) options.token = token_;
  return std::make_unique<TokenStream>(NextLink(), std::move(request), std::move(options));
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

absl::StatusOr<bool> Client::Abort(const std::string& request_id, const std::string& resume_token,
                                   absl::Duration timeout, const std::string& tenant) {
  grpc::ClientContext context;
  Prepare(context, token_, timeout);
  v1::AbortRequest request;
  request.set_tenant(tenant);
  request.set_request_id(request_id);
  request.set_resume_token(resume_token);
  v1::AbortResponse response;
  const grpc::Status status = NextLink().stub().Abort(&context, request, &response);
  if (!status.ok()) return FromGrpcStatus(status);
  return response.found();
}

absl::StatusOr<v1::GetLoadsResponse> Client::GetLoads(std::optional<uint32_t> dp_rank,
                                                      absl::Duration timeout) {
  grpc::ClientContext context;
  Prepare(context, token_, timeout);
  v1::GetLoadsRequest request;
  if (dp_rank.has_value()) request.set_dp_rank(*dp_rank);
  v1::GetLoadsResponse response;
  const grpc::Status status = NextLink().stub().GetLoads(&context, request, &response);
  if (!status.ok()) return FromGrpcStatus(status);
  return response;
}

}  // namespace bfio::client
