// What a router needs of an engine behind Envoy: a server of /v1/models, /metrics and /health. The test plays
// Envoy, and says what runs there. Completions of token ids are for prompts that are handed over: with `kv`
// it computes them for others, or fetches what others have computed, as its requests say.
#pragma once

// As the library was built, or its types have other layouts.
#ifndef CPPHTTPLIB_OPENSSL_SUPPORT
#define CPPHTTPLIB_OPENSSL_SUPPORT
#endif

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/mutex.h"
#include "httplib.h"
#include "nlohmann/json.hpp"
#include "tests/testing/handed_over_kv.h"
#include "tests/testing/meeting_rooms.h"
#include "tests/testing/next_token.h"

namespace bfio::testing {

class HttpEngine {
 public:
  // `ranks`: of this server, counted from `first`. `port`: 0 for any. `certs`: a folder of deploy/make_certs,
  // for TLS as at a worker port; empty: plain text.
  explicit HttpEngine(int ranks = 1, int first = 0, int port = 0, const std::string& certs = "")
      : ranks(ranks), first(first) {
    if (!certs.empty()) {
      server_ = std::make_unique<httplib::SSLServer>((certs + "/worker-server.crt").c_str(),
                                                     (certs + "/worker-server.key").c_str(),
                                                     (certs + "/worker-ca.crt").c_str());
    }
    server_->set_pre_routing_handler([this](const httplib::Request& request, httplib::Response& response) {
      const std::string needed = token;
      if (needed.empty() || request.get_header_value("Authorization") == "Bearer " + needed)
        return httplib::Server::HandlerResponse::Unhandled;
      response.status = 401;
      return httplib::Server::HandlerResponse::Handled;
    });
    server_->Get("/v1/models", [this](const httplib::Request&, httplib::Response& response) {
      response.set_content(models, "application/json");
    });
    server_->Get("/metrics", [this](const httplib::Request&, httplib::Response& response) {
      response.set_content(Metrics(), "text/plain");
    });
    server_->Get("/health", [this](const httplib::Request&, httplib::Response& response) {
      response.status = healthy ? 200 : 503;
    });
    server_->Post("/v1/completions", [this](const httplib::Request& request, httplib::Response& response) {
      Complete(request, response);
    });
    for (const bool chat : {false, true}) {
      server_->Post(chat ? "/v1/chat/completions/render" : "/v1/completions/render",
                    [this, chat](const httplib::Request& request, httplib::Response& response) {
                      Render(chat, request, response);
                    });
    }
    server_->new_task_queue = [] { return new httplib::ThreadPool(64); };
    port_ = port > 0 ? server_->bind_to_port("127.0.0.1", port) ? port : 0
                     : server_->bind_to_any_port("127.0.0.1");
    thread_ = std::thread([this] { server_->listen_after_bind(); });
    while (!server_->is_running()) std::this_thread::yield();
  }
  ~HttpEngine() { Stop(); }

  // Like a server that has died.
  void Stop() {
    stopped_ = true;
    if (kv != nullptr) kv->OnDeath(this);
    server_->stop();
    if (thread_.joinable()) thread_.join();
  }
  int port() const { return port_; }
  std::string address() const { return absl::StrCat("127.0.0.1:", port_); }

  // Replaced by the test while the server runs.
  class Text {
   public:
    explicit Text(std::string text) : text_(std::move(text)) {}
    void operator=(std::string text) {
      MutexLock lock(&mutex_);
      text_ = std::move(text);
    }
    operator std::string() const {
      MutexLock lock(&mutex_);
      return text_;
    }

   private:
    mutable Mutex mutex_;
    std::string text_ ABSL_GUARDED_BY(mutex_);
  };
  Text models{R"({"object":"list","data":[{"id":"m","max_model_len":4096},{"id":"lora"}]})"};
  // Appended to the metrics.
  Text more_metrics{""};
  // Bearer token of each call; empty: none is needed.
  Text token{""};
  std::atomic<int> ranks, first;
  std::atomic<bool> healthy = true;
  std::atomic<int64_t> running = 0, waiting = 0, generated = 0;

  std::shared_ptr<HandedOverKv> kv;
  // SGLang's; it computes prompts for others.
  std::shared_ptr<MeetingRooms> rooms;
  bool computes = false;
  // Of prompts for others: what it answers, whether with a hand-off, and how long they take.
  std::atomic<int> prefill_status = 200, prefill_ms = 5;
  std::atomic<bool> hands_over = true;
  // What it answers where a prompt's tokens are asked for (a byte is one); 200: with these.
  std::atomic<int> render_status = 200, renders = 0;
  // Requests for completions so far, and those of prompts for others.
  std::atomic<int> completions = 0, prefills = 0;
  // The first prompt for others.
  httplib::Request prefill;

 private:
  using Json = nlohmann::json;

  // As vLLM: an object for a conversation, a list of them for prompts.
  void Render(bool chat, const httplib::Request& request, httplib::Response& response) {
    ++renders;
    const Json body = Json::parse(request.body);
    const std::string text = chat ? body.at("messages").dump() : body.at("prompt").get<std::string>();
    const Json prompt = {{"request_id", "r"},
                         {"token_ids", std::vector<uint8_t>(text.begin(), text.end())},
                         {"features", nullptr},
                         {"sampling_params", {{"max_tokens", 9}}}};
    response.status = render_status;
    response.set_content((chat ? prompt : Json::array({prompt})).dump(), "application/json");
  }

  void Complete(const httplib::Request& request, httplib::Response& response) {
    const Json body = Json::parse(request.body);
    const auto prompt = body.at("prompt").get<std::vector<uint32_t>>();
    const Json transfer = body.value("kv_transfer_params", Json::object());
    const bool for_others = transfer.value("do_remote_decode", false);
    ++completions;
    if (rooms != nullptr && !Meet(body, prompt)) {
      response.status = 400;
      return response.set_content(R"({"message":"no bootstrap room, or nobody in it"})", "application/json");
    }
    if (for_others) {
      if (++prefills == 1) prefill = request;
      for (int ms = 0; ms < prefill_ms && !stopped_; ++ms)
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    // The connection breaks.
    if (stopped_) return response.set_content_provider(9, "", [](size_t, size_t, auto&) { return false; });
    if (for_others && prefill_status != 200) {
      response.status = prefill_status;
      return response.set_content(R"({"error":{"message":"no"}})", "application/json");
    }
    std::vector<uint32_t> known = prompt;
    if (kv != nullptr && !for_others && kv->Fetch(transfer.dump(), prompt) == HandedOverKv::Fetched::kWrong) {
      known.back() += 1;
    }
    Json answer = {{"tokens", TokensAfter(known, body.value("max_tokens", 16))}};
    if (for_others && hands_over) answer["kv_transfer_params"] = Json::parse(kv->Make(this, prompt));
    response.set_content(answer.dump(), "application/json");
  }
  bool Meet(const Json& body, const std::vector<uint32_t>& prompt) {
    if (!body.contains("bootstrap_room")) return false;
    const int32_t room = body.at("bootstrap_room");
    rooms->Enter(room, computes,
                 absl::StrCat(body.value("bootstrap_host", ""), ":", body.value("bootstrap_port", 0)),
                 prompt);
    const auto done = [&] { return computes ? rooms->BothThere(room) : rooms->IsComputed(room); };
    while (!done() && !stopped_) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    if (computes) rooms->Computed(room);
    return !stopped_;
  }
  std::string Metrics() const {
    std::string text = "# TYPE vllm:num_requests_running gauge\n";
    for (int rank = first; rank < first + ranks; ++rank) {
      const std::string labels = absl::StrCat("{engine=\"", rank, "\",model_name=\"m, \\\"x\\\"}\"}");
      absl::StrAppend(&text, "vllm:num_requests_running", labels, " ", running.load(), ".0\n",
                      "vllm:num_requests_waiting", labels, " ", waiting.load(), "\n");
      absl::StrAppend(&text, "vllm:num_requests_waiting_by_reason", labels, " 77\n",
                      "vllm:kv_cache_usage_perc", labels, " 0.25\n", "vllm:generation_tokens_total", labels,
                      " ", generated.load(), " 1700000000\n");
      absl::StrAppend(&text, "vllm:cache_config_info{block_size=\"16\",engine=\"", rank,
                      "\",num_gpu_blocks=\"", 1000 * ranks, "\"} 1.0\n");
    }
    return text + std::string(more_metrics);
  }

  std::unique_ptr<httplib::Server> server_ = std::make_unique<httplib::Server>();
  int port_ = 0;
  std::atomic<bool> stopped_ = false;
  std::thread thread_;
};

}  // namespace bfio::testing
