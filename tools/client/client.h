// The C++ client of a bfio router.
//
// Purpose: sends requests and reads their tokens, each exactly once and in order, even when the waiting pool
// is full, the router restarts or the connection is lost. A Client holds the connection; a TokenStream
// (token_stream.h) is one request.
//
//     absl::StatusOr<std::unique_ptr<Client>> client = Client::Create({.target = "127.0.0.1:50051"});
//     v1::GenerateRequest request;
//     request.set_prompt_length(100);
//     request.set_max_new_tokens(20);
//     absl::StatusOr<Generated> result = (*client)->GenerateAll(request);
//
// Ownership: a client outlives its streams; its destructor waits until gRPC has released the cancelled ones.
// Threads: any number at the same time.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "common/net/tls.h"
#include "tools/client/link.h"
#include "tools/client/token_stream.h"

namespace bfio::client {

struct ClientOptions {
  // HOST:PORT of the router's client API.
  std::string target;
  // Files for TLS; the connection is plain text when they are not set.
  TlsFiles tls;
  // Bearer token of calls that have no token of their own; empty: none. It leaves this machine only over an
  // encrypted connection.
  std::string token;
};

// The complete result of one request.
struct Generated {
  std::string request_id;
  std::vector<uint32_t> token_ids;
  v1::Finish finish;
};

class Client {
 public:
  // Connects when the first call needs it. INVALID_ARGUMENT or NOT_FOUND when the address, the TLS files or
  // the token cannot be used.
  static absl::StatusOr<std::unique_ptr<Client>> Create(const ClientOptions& options);

  // Starts a request. The library sets the fields for resuming: with CallOptions::resume it fills in those
  // that are empty.
  std::unique_ptr<TokenStream> Generate(v1::GenerateRequest request, CallOptions options = {});
  // Sends the request and reads it to its end. `on_tokens`, if given, is called with tokens as they arrive,
  // on the calling thread.
  absl::StatusOr<Generated> GenerateAll(
      v1::GenerateRequest request, CallOptions options = {},
      const std::function<void(uint32_t first_index, absl::Span<const uint32_t> ids)>& on_tokens = nullptr);

  // Ends a live request, of this or another client. `resume_token` and `tenant` are those that the request
  // was sent with; the tenant may be empty when the bearer token implies it. False when there is no such live
  // request.
  absl::StatusOr<bool> Abort(const std::string& request_id, const std::string& resume_token = "",
                             absl::Duration timeout = absl::Seconds(5), const std::string& tenant = "");
  // Loads of one rank, or of all ranks.
  absl::StatusOr<v1::GetLoadsResponse> GetLoads(std::optional<uint32_t> dp_rank = std::nullopt,
                                                absl::Duration timeout = absl::Seconds(5));

 private:
  Client(std::string token, const std::shared_ptr<grpc::ChannelInterface>& channel)
      : token_(std::move(token)), link_(channel) {}
  // Makes a unary call, with the client's token.
  template <typename Request, typename Response>
  absl::Status Call(absl::Duration timeout, const Request& request, Response& response,
                    grpc::Status (v1::Inference::Stub::*method)(grpc::ClientContext*, const Request&,
                                                                Response*));

  const std::string token_;
  Link link_;
};

}  // namespace bfio::client
