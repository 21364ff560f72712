// A Kubernetes API server with one InferencePool and its pods, in the namespace `ns`, over TLS: the test says
// what it lists, sends and breaks. Threads: any.
#pragma once

#ifndef CPPHTTPLIB_OPENSSL_SUPPORT
#define CPPHTTPLIB_OPENSSL_SUPPORT
#endif

#include <fstream>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/mutex.h"
#include "httplib.h"
#include "nlohmann/json.hpp"
#include "tests/testing/process.h"

namespace bfio::testing {

class ApiServer {
 public:
  using Json = nlohmann::json;

  // `folder`: for its certificate, and the service account's files.
  explicit ApiServer(const std::string& folder) : folder_(folder) {
    MakeCerts(folder);
    std::ofstream(folder + "/ca.crt") << std::ifstream(folder + "/worker-ca.crt").rdbuf();
    // As long as real ones.
    SetToken(std::string(1200, 'a'));
    server_ = std::make_unique<httplib::SSLServer>((folder + "/worker-server.crt").c_str(),
                                                   (folder + "/worker-server.key").c_str());
    server_->Get(R"(/api/v1/namespaces/ns/pods)",
                 [this](const auto& request, auto& response) { Answer(pods_, request, response); });
    server_->Get(R"(/apis/inference.networking.k8s.io/v1/namespaces/ns/inferencepools)",
                 [this](const auto& request, auto& response) { Answer(pools_, request, response); });
    server_->new_task_queue = [] { return new httplib::ThreadPool(16); };
    port_ = server_->bind_to_any_port("127.0.0.1");
    thread_ = std::thread([this] { server_->listen_after_bind(); });
    while (!server_->is_running()) std::this_thread::yield();
  }
  ~ApiServer() {
    {
      MutexLock lock(&mutex_);
      stopped_ = true;
    }
    server_->stop();
    thread_.join();
  }

  int port() const { return port_; }
  const std::string& folder() const { return folder_; }
  // As in the list of engines.
  std::string settings() const {
    return absl::StrCat("url: k8s://ns/vllm, api_server: \"127.0.0.1:", port_, "\", api_files: ", folder_);
  }
  // Only this token is good from now on; `tell`: the service account's file has it.
  void SetToken(const std::string& token, bool tell = true) {
    MutexLock lock(&mutex_);
    token_ = token;
    if (tell) std::ofstream(folder_ + "/token") << token;
  }

  static Json Pool(const std::vector<int>& ports) {
    Json pool = {{"metadata", {{"name", "vllm"}}},
                 {"spec", {{"selector", {{"matchLabels", {{"app/name", "vllm"}, {"b", ""}}}}}}}};
    for (const int port : ports) pool["spec"]["targetPorts"].push_back({{"number", port}});
    return pool;
  }
  static Json Pod(const std::string& name, const std::string& ip, bool ready = true) {
    const Json ready_now = {{"type", "Ready"}, {"status", ready ? "True" : "False"}};
    return {{"metadata", {{"name", name}}},
            {"status",
             {{"podIP", ip}, {"conditions", {{{"type", "Initialized"}, {"status", "True"}}, ready_now}}}}};
  }
  static Json Terminating(Json pod) {
    pod["metadata"]["deletionTimestamp"] = "2026-11-30T00:00:00Z";
    return pod;
  }

  // What it lists from now on.
  void ListPools(std::vector<Json> objects) { List(pools_, std::move(objects)); }
  void ListPods(std::vector<Json> objects) { List(pods_, std::move(objects)); }
  // Sends an event to those who watch pods or pools, with the next version.
  void SendPod(const std::string& type, Json object) { Send(pods_, Event(type, std::move(object)) + "\n"); }
  void SendPool(const std::string& type, Json object) { Send(pools_, Event(type, std::move(object)) + "\n"); }
  void SendBytes(const std::string& bytes) { Send(pods_, bytes); }
  std::string Event(const std::string& type, Json object) {
    MutexLock lock(&mutex_);
    object["metadata"]["resourceVersion"] = absl::StrCat(++version_);
    return Json{{"type", type}, {"object", object}}.dump();
  }
  // The watches of pods break, or end in good order.
  void Cut() { Send(pods_, "", Part::kCut); }
  void End() { Send(pods_, "", Part::kEnd); }

  // Lists of pods have further pages for ever.
  void set_endless(bool endless) {
    MutexLock lock(&mutex_);
    endless_ = endless;
  }

  int64_t version() const {
    MutexLock lock(&mutex_);
    return version_;
  }
  // Queries for pods so far.
  std::vector<std::string> lists() const {
    MutexLock lock(&mutex_);
    return pods_.lists;
  }
  size_t pool_watches() const {
    MutexLock lock(&mutex_);
    return pools_.watches.size();
  }
  // The versions of the watches of pods so far.
  std::vector<std::string> watches() const {
    MutexLock lock(&mutex_);
    return pods_.watches;
  }

 private:
  enum class Part { kBytes, kCut, kEnd };
  struct Collection {
    std::vector<Json> objects;
    // What the present watch has to send.
    std::vector<std::pair<Part, std::string>> parts;
    std::vector<std::string> lists, watches;
  };

  void List(Collection& of, std::vector<Json> objects) {
    MutexLock lock(&mutex_);
    of.objects = std::move(objects);
  }
  void Send(Collection& to, const std::string& bytes, Part part = Part::kBytes) {
    MutexLock lock(&mutex_);
    to.parts.emplace_back(part, bytes);
  }
  void Answer(Collection& of, const httplib::Request& request, httplib::Response& response) {
    MutexLock lock(&mutex_);
    if (request.get_header_value("Authorization") != "Bearer " + token_) {
      response.status = 401;
      return;
    }
    if (request.has_param("watch")) {
      of.watches.push_back(request.get_param_value("resourceVersion"));
      of.parts.clear();
      return response.set_chunked_content_provider(
          "application/json", [this, &of, number = of.watches.size()](size_t, httplib::DataSink& sink) {
            std::vector<std::pair<Part, std::string>> parts;
            for (;; std::this_thread::sleep_for(std::chrono::milliseconds(1))) {
              MutexLock lock(&mutex_);
              if (stopped_ || number != of.watches.size()) return false;
              parts.swap(of.parts);
              if (!parts.empty() || !sink.is_writable()) break;
            }
            for (const auto& [part, bytes] : parts) {
              if (part == Part::kCut) return false;
              if (part == Part::kEnd) return sink.done(), true;
              if (!sink.write(bytes.data(), bytes.size())) return false;
            }
            return sink.is_writable();
          });
    }
    // In pages of two.
    of.lists.push_back(
        absl::StrCat(request.get_param_value("labelSelector"), request.get_param_value("fieldSelector")));
    const size_t from =
        request.has_param("continue") ? std::stoul(request.get_param_value("continue").substr(1)) : 0;
    const size_t end = std::min(from + 2, of.objects.size());
    Json page = {{"metadata", {{"resourceVersion", absl::StrCat(version_)}}},
                 {"items", std::vector<Json>(of.objects.begin() + static_cast<long>(from),
                                             of.objects.begin() + static_cast<long>(end))}};
    if (end < of.objects.size() || (endless_ && &of == &pods_))
      page["metadata"]["continue"] = absl::StrCat("c", end);
    response.set_content(page.dump(), "application/json");
  }

  const std::string folder_;
  std::unique_ptr<httplib::SSLServer> server_;
  mutable Mutex mutex_;
  bool stopped_ ABSL_GUARDED_BY(mutex_) = false;
  std::string token_ ABSL_GUARDED_BY(mutex_);
  bool endless_ ABSL_GUARDED_BY(mutex_) = false;
  int64_t version_ ABSL_GUARDED_BY(mutex_) = 100;
  Collection pools_ ABSL_GUARDED_BY(mutex_), pods_ ABSL_GUARDED_BY(mutex_);
  int port_ = 0;
  std::thread thread_;
};

}  // namespace bfio::testing
