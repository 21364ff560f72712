// The C++ client of a bfio router.
//
// Purpose: sends requests and reads their tokens, each exactly once and in order, over everything that
// passes: a full pool, a restarted router, a lost connection. A Client holds the connections, a TokenStream
// (token_stream.h) is one request.
//
//     absl::StatusOr<std::unique_ptr<Client>> client = Client::Create({.target = "127.0.0.1:50051"});
//     v1::GenerateRequest request;
//     request.set_prompt_length(100);
//     request.set_max_new_tokens(20);
//     absl::StatusOr<Generated> result = (*client)->GenerateAll(request);
//
// Ownership: a client outlives its streams, and waits at its end until gRPC has let go of the cancelled ones.
// Threads: any number at once.
#ifndef BFIO_TOOLS_CLIENT_CLIENT_H_
#define BFIO_TOOLS_CLIENT_CLIENT_H_

#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "bfio/v1/inference.pb.h"
#include "common/net/tls.h"
#include "tools/client/token_stream.h"

namespace bfio::client {

struct ClientOptions {
  // HOST:PORT of the router's client API.
  std::string target;
  // Plain text without.
  TlsFiles tls;
  // Bearer token of all calls that bring none of their own; empty: none. Leaves this machine encrypted only.
  std::string token;
  // Connections that requests are spread over. One is enough for thousands of streams.
  int connections = 1;
};

// A whole request.
struct Generated {
  std::string request_id;
  std::vector<uint32_t> token_ids;
  v1::Finish finish;
};

class Client {
 public:
  // Connects when the first call needs it. INVALID_ARGUMENT or NOT_FOUND for an address, TLS files or a token
  // that do not do.
  static absl::StatusOr<std::unique_ptr<Client>> Create(const ClientOptions& options);
  ~Client();

  // Starts a request. The fields about resuming are the library's: with CallOptions::resume it fills in what
  // is empty.
  std::unique_ptr<TokenStream> Generate(v1::GenerateRequest request, CallOptions options = {});
  // The same, read to its end; `on_tokens`, if given, sees tokens as they come, on the calling thread.
  absl::StatusOr<Generated> GenerateAll(
      v1::GenerateRequest request, CallOptions options = {},
      const std::function<void(uint32_t first_index, absl::Span<const uint32_t> ids)>& on_tokens = nullptr);

  // Ends a live request, whichever client has sent it, with the resume_token and tenant it was sent with; the
  // tenant may be left out where it is the bearer token's. False when there is none of these.
  absl::StatusOr<bool> Abort(const std::string& request_id, const std::string& resume_token = "",
                             absl::Duration timeout = absl::Seconds(5), const std::string& tenant = "");
  // Of one rank, or of all.
  absl::StatusOr<v1::GetLoadsResponse> GetLoads(std::optional<uint32_t> dp_rank = std::nullopt,
                                                absl::Duration timeout = absl::Seconds(5));

  // True when a caller's bearer token may be sent: the link is encrypted or does not leave this machine.
  bool MayCarryTokens() const { return private_link_; }

 private:
  Client(std::string token, bool private_link, std::vector<std::unique_ptr<Link>> links);
  Link& NextLink();

  const std::string token_;
  const bool private_link_;
  const std::vector<std::unique_ptr<Link>> links_;
  std::atomic<size_t> next_link_ = 0;
};

}  // namespace bfio::client

#endif  // BFIO_TOOLS_CLIENT_CLIENT_H_
