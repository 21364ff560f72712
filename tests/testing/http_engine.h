// What a router reads of an engine behind Envoy: a server of /v1/models, /metrics and /health. The test plays
// Envoy, and says what runs there.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>
#include <thread>

#include "absl/strings/str_cat.h"
#include "httplib.h"

namespace bfio::testing {

class HttpEngine {
 public:
  // `ranks`: of this server, counted from `first`.
  explicit HttpEngine(int ranks = 1, int first = 0) : ranks(ranks), first(first) {
    server_.Get("/v1/models", [this](const httplib::Request&, httplib::Response& response) {
      response.set_content(models, "application/json");
    });
    server_.Get("/metrics", [this](const httplib::Request&, httplib::Response& response) {
      response.set_content(Metrics(), "text/plain");
    });
    server_.Get("/health", [this](const httplib::Request&, httplib::Response& response) {
      response.status = healthy ? 200 : 503;
    });
    port_ = server_.bind_to_any_port("127.0.0.1");
    thread_ = std::thread([this] { server_.listen_after_bind(); });
    while (!server_.is_running()) std::this_thread::yield();
  }
  ~HttpEngine() { Stop(); }

  // Like a server that has died.
  void Stop() {
    server_.stop();
    if (thread_.joinable()) thread_.join();
  }
  int port() const { return port_; }
  std::string address() const { return absl::StrCat("127.0.0.1:", port_); }

  std::string models = R"({"object":"list","data":[{"id":"m","max_model_len":4096},{"id":"lora"}]})";
  // Appended to the metrics.
  std::string more_metrics;
  std::atomic<int> ranks, first;
  std::atomic<bool> healthy = true;
  std::atomic<int64_t> running = 0, waiting = 0, generated = 0;

 private:
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
    return text + more_metrics;
  }

  httplib::Server server_;
  int port_ = 0;
  std::thread thread_;
};

}  // namespace bfio::testing
