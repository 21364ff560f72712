// KV that test engines hand over between processes, as vLLM's NIXL connector does (HandedOverKv is the
// same within a process): files of a directory that all servers share. A server that computes prompts holds a
// lock while it lives. A prompt's KV can be fetched once, before its lease ends. Threads: any.
#pragma once

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <ctime>
#include <fstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "nlohmann/json.hpp"

namespace bfio::testing {

class KvFiles {
 public:
  enum class Fetched { kNothing, kRight, kWrong, kGone };

  // `role`: kv_producer or kv_consumer.
  KvFiles(std::string directory, std::string role)
      : directory_(std::move(directory)), role_(std::move(role)) {
    if (lock_ >= 0) flock(lock_, LOCK_EX);
  }
  ~KvFiles() {
    if (lock_ >= 0) close(lock_);
  }
  KvFiles(const KvFiles&) = delete;
  KvFiles& operator=(const KvFiles&) = delete;

  const std::string& role() const { return role_; }

  static bool IsAskedFor(const std::string& parameters) { return Flag(parameters, "do_remote_decode"); }

  // Keeps a prompt's KV; the parameters of its hand-off.
  std::string Make(const std::vector<uint32_t>& prompt) {
    const std::string id = absl::StrCat(server_, ".", ++made_);
    std::ofstream(directory_ + "/" + id) << absl::StrJoin(prompt, " ");
    return absl::StrCat(
        R"({"do_remote_prefill": true, "do_remote_decode": false, "remote_block_ids": [[1]],)",
        R"("remote_engine_id": ")", server_,
        R"(", "remote_host": "localhost", "remote_port": 5600, "remote_request_id": ")", id, R"("})");
  }

  // Frees it.
  Fetched Fetch(const std::string& parameters, const std::vector<uint32_t>& prompt) {
    if (!Flag(parameters, "do_remote_prefill")) return Fetched::kNothing;
    const auto id = nlohmann::json::parse(parameters).value("remote_request_id", std::string("none."));
    const std::string path = directory_ + "/" + id;
    if (!Lives(directory_ + "/" + id.substr(0, id.find('.')))) return Fetched::kGone;
    struct stat file = {};
    std::ifstream stream(path);
    const std::string kept((std::istreambuf_iterator<char>(stream)), {});
    const bool there = stat(path.c_str(), &file) == 0 && file.st_mtime + kLeaseSeconds > std::time(nullptr);
    // Of two that fetch it, one removes it.
    const bool right = there && kept == absl::StrJoin(prompt, " ") && unlink(path.c_str()) == 0;
    return right ? Fetched::kRight : Fetched::kWrong;
  }

 private:
  static constexpr std::time_t kLeaseSeconds = 30;

  static bool Flag(const std::string& parameters, const char* name) {
    const auto json = nlohmann::json::parse(parameters, nullptr, false);
    return json.is_object() && json.value(name, false);
  }
  static bool Lives(const std::string& server) {
    const int file = open(server.c_str(), O_RDONLY | O_CLOEXEC);
    if (file < 0) return false;
    const bool held = flock(file, LOCK_SH | LOCK_NB) != 0;
    close(file);
    return held;
  }

  const std::string directory_, role_;
  // Differs between the lives of a server.
  const std::string server_ = absl::StrCat("server-", getpid(), "-", std::time(nullptr));
  const int lock_ = role_ == "kv_producer"
                        ? open((directory_ + "/" + server_).c_str(), O_CREAT | O_RDWR | O_CLOEXEC, 0600)
                        : -1;
  std::atomic<int64_t> made_{0};
};

}  // namespace bfio::testing
