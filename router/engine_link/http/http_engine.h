// An engine with OpenAI's API over HTTP (vLLM, SGLang), behind Envoy: the router reads its model, sizes and
// load there, and chooses the rank of requests that Envoy then sends to it (requests/placed_request.h). It
// learns of one only when it has ended. Prompts for other engines it has computed there itself, by the
// client's own call for one token, whose answer says where the KV is.
//
//   GET /v1/models     the model and its longest sequence
//   GET /metrics       by rank (label `engine` or `dp_rank`): requests, use and size of the KV cache, tokens
//   GET /health        whether it is alive
//   POST /v1/chat/completions/render, /v1/completions/render    the tokens of a prompt (prefixes: exact)
//
// vLLM does not report how many requests it runs at a time (max_num_seqs), nor its role: EngineAddress.
// Ownership: owns a thread. Threads: as EngineClient.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/http/http_client.h"
#include "router/engine_link/engine_client.h"
#include "router/engine_link/engine_list.h"
#include "router/requests/renderers.h"
#include "router/requests/text_ratio.h"

namespace bfio::router {

// `ratio` learns from its counts; `renderers` may ask it.
std::unique_ptr<EngineClient> NewHttpEngine(const EngineAddress& engine,
                                            std::shared_ptr<TextRatio> ratio = std::make_shared<TextRatio>(),
                                            std::shared_ptr<Renderers> renderers = nullptr);

// How its servers are called: the files of `engine` are read again.
HttpClient::Login LoginOf(const EngineAddress& engine);

// The client's call (OpenAI's API), for one token and a hand-off (vLLM's kv_transfer_params).
std::string PrefillBody(absl::string_view body, const KvSource& source);
// What a prefill server's answer means. Any that shows no fault of the server ends in a hand-off: an empty
// one leaves the prompt, and what is wrong with it, to the rank that decodes.
absl::StatusOr<EngineEnd> EndOfPrefill(absl::StatusOr<HttpClient::Answer> answer, const KvSource& source);

// An answer to a prompt's rendering, as vLLM's: token_ids, of one prompt.
absl::StatusOr<RenderedPrompt> RenderedFrom(absl::StatusOr<HttpClient::Answer> answer);

// Fills in the model's name and longest sequence of an answer to /v1/models. INVALID_ARGUMENT: there are
// none.
absl::Status ReadModels(absl::string_view text, EngineDescription& description);

}  // namespace bfio::router
