// Envoy's external processor as an endpoint picker (Gateway API Inference Extension, proposal 004): Envoy, or
// a gateway built on it, asks for each HTTP request to which engine it goes. The stream is held until the
// request has a place, so the rank is chosen as late as at every other edge; tokens do not pass through the
// router. A second filter in observability_mode may show when requests end: a stream on which the response
// depends (FULL_DUPLEX_STREAMED) then ends with the choice. Threads: methods run on gRPC's threads and never
// block. The handler outlives the server with which the service is registered.
#pragma once

#include <grpcpp/grpcpp.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/base/fair_share.h"
#include "common/base/mutex.h"
#include "common/net/authenticator.h"
#include "common/net/call_service.h"
#include "common/net/first_messages.h"
#include "router/core/model/prefix_blocks.h"
#include "router/frontend/request_handler.h"
#include "router/requests/limits.h"
#include "router/requests/renderers.h"
#include "router/requests/text_ratio.h"

namespace bfio::router::picker {

// What a decision needs of a request in OpenAI's API: lengths, and the text with which its prompt begins.
// Engines check requests; here nothing is refused that an engine might accept, except what cannot be read.
// Pure; any thread.

// Of a prompt's text per token, until the engines' counts are known (TextRatio); of prefix blocks always, so
// that their names do not change.
inline constexpr int64_t kBytesPerToken = 4;
// A larger body is refused with 413. A prompt of a million tokens has some 4 MiB.
inline constexpr size_t kMaxBodyBytes = size_t{16} << 20;

struct OpenAiRequest {
  // Empty: not given.
  std::string model;
  // At least 1. Exact where the prompt is token ids, otherwise from its bytes by kBytesPerToken.
  uint32_t prompt_tokens = 1;
  // 0: it has none, or the prompt is token ids.
  int64_t text_bytes = 0;
  // Of one output; absent: not given.
  std::optional<uint32_t> max_tokens;
  // Outputs of the call, at least 1 (n, best_of).
  uint32_t outputs = 1;
  // It has one prompt and one output, and nothing in its answer is about the prompt: another engine may
  // compute it.
  bool one_prompt = false;
  // Blocks of the prompt's text, kBytesPerToken bytes counting as a token; null: too short.
  core::PrefixBlocks prefix;
};

// Whether requests to the path (":path", with or without a query) generate tokens.
bool Generates(absl::string_view path);

// Reads the body of a request to such a path: chat completions, completions or responses. INVALID_ARGUMENT:
// it is no JSON object, beyond the bounds of common/json, or as for CheckNoHandOff.
absl::StatusOr<OpenAiRequest> ReadOpenAiRequest(absl::string_view body);

// A body to any path. INVALID_ARGUMENT: it hands KV over (kv_transfer_params), or is an object that cannot be
// read.
absl::Status CheckNoHandOff(absl::string_view body);

// A message with a body of kMaxBodyBytes.
inline constexpr int kMaxMessageBytes = 17 << 20;
inline constexpr char kServiceName[] = "envoy.service.ext_proc.v3.ExternalProcessor";

struct PickerOptions {
  RequestLimits limits;
  // The request header that names the tenant. The route must remove a client's own.
  std::string tenant_header = "x-gateway-inference-fairness-id";
  // What all streams hold together until they have forwarded their requests, in bytes; a tenant has a share
  // of it. Each holds its body, and while that is coming a fixed part.
  int64_t held_bytes = int64_t{128} << 20;
  // How many tokens a prompt's text has; and who says which.
  std::shared_ptr<const TextRatio> text_ratio = std::make_shared<TextRatio>();
  std::shared_ptr<Renderers> renderers = std::make_shared<Renderers>();
};

class Exchange;
class PickerCall;

class PickerService final : public CallService {
 public:
  // The fixed part of PickerOptions::held_bytes.
  static constexpr int64_t kStreamBytes = int64_t{32} << 10;

  PickerService(RequestHandler* handler, Authenticator* authenticator, PickerOptions options);
  ~PickerService() override;

  // Number of open streams.
  int64_t streams() const;
  // Number of streams that observe a request without a place.
  int64_t observers() const;
  // Ends the streams whose requests have a place, without touching their responses.
  void Close();
  FirstMessages* first_messages() { return &messages_; }

 private:
  friend class PickerCall;

  PickerCall* Process(grpc::CallbackServerContext* context);
  void ReadLarge();
  void Forget(uint64_t id, absl::string_view observed);
  // The stream that observes the request with that x-request-id; null: none.
  void Observe(absl::string_view request_id, uint64_t id);
  std::shared_ptr<PickerCall> TakeObserver(absl::string_view request_id);
  // What Envoy has sent, and the router's request for it. INVALID_ARGUMENT: the body cannot be read, or asks
  // for what no server here does.
  absl::StatusOr<OpenAiRequest> Read(const Exchange& exchange, absl::string_view body) const;
  absl::StatusOr<ClientRequest> RequestOf(const Exchange& exchange, core::RequestId id,
                                          const OpenAiRequest& read) const;

  RequestHandler* const handler_;
  Authenticator* const authenticator_;
  const PickerOptions options_;
  // Request headers that are read.
  const std::vector<std::string> headers_;
  FirstMessages messages_;
  const std::shared_ptr<SharedCapacity> held_ = std::make_shared<SharedCapacity>(options_.held_bytes);
  // By rank, the requests that wait for it because Envoy permits only some.
  const std::shared_ptr<SharedCapacity> bound_ = std::make_shared<SharedCapacity>(int64_t{1} << 40);
  mutable Mutex mutex_;
  absl::flat_hash_map<uint64_t, std::weak_ptr<PickerCall>> calls_ ABSL_GUARDED_BY(mutex_);
  // By x-request-id, which clients may repeat.
  std::multimap<std::string, uint64_t, std::less<>> observers_ ABSL_GUARDED_BY(mutex_);
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  // Complete requests with large bodies, which are read one at a time, in turns of the tenants.
  FairQueue<std::shared_ptr<PickerCall>> large_ ABSL_GUARDED_BY(mutex_);
  std::thread reader_{[this] { ReadLarge(); }};
};

}  // namespace bfio::router::picker
