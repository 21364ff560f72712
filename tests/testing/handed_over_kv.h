// The KV of prompts that test engines have computed for others, as vLLM's NIXL connector keeps it: it is
// pinned until it is fetched, once, or its lease ends, and is another prompt's afterwards. Files of a
// directory, which engines of several processes may share; a server that computes prompts holds a lock there
// while it lives. Threads: any.
#pragma once

#include <fcntl.h>
#include <stdlib.h>
#include <sys/file.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <map>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/time/time.h"
#include "common/base/clock.h"
#include "nlohmann/json.hpp"

namespace bfio::testing {

class HandedOverKv {
 public:
  // What an engine finds for a request: nothing is asked for, its prompt's KV, that of another prompt, or a
  // server that is gone.
  enum class Fetched { kNothing, kRight, kWrong, kGone };

  // Empty: a directory of its own.
  explicit HandedOverKv(std::string directory = "") : directory_(std::move(directory)) {
    if (!directory_.empty()) return;
    directory_ = std::filesystem::temp_directory_path() / "bfio-kv.XXXXXX";
    if (mkdtemp(directory_.data()) != nullptr) own_ = directory_;
  }
  ~HandedOverKv() {
    for (const auto& [server, lock] : locks_) close(lock.file);
    if (!own_.empty()) std::filesystem::remove_all(own_);
  }
  HandedOverKv(const HandedOverKv&) = delete;
  HandedOverKv& operator=(const HandedOverKv&) = delete;

  // Pins the prompt's KV; the parameters of its hand-off.
  std::string Make(const void* server, const std::vector<uint32_t>& prompt) {
    const std::string id = absl::StrCat("kv-", Unique(), "-", ++made);
    Keep(id, server, prompt);
    return absl::StrCat(
        R"({"do_remote_prefill": true, "do_remote_decode": false, "remote_block_ids": [[1]],)",
        R"("remote_engine_id": "engine-p", "remote_host": "localhost", "remote_port": 5600,)",
        R"("remote_request_id": ")", id, R"("})");
  }
  // The same with Mooncake's connector, where the caller has named the transfer.
  void MakeNamed(const void* server, const std::string& engine, const std::string& parameters,
                 const std::vector<uint32_t>& prompt) {
    ++made;
    const auto asked = nlohmann::json::parse(parameters, nullptr, false);
    Keep(absl::StrCat(engine, " http://bootstrap:1 ", asked.value("transfer_id", "")), server, prompt);
  }
  // Frees it.
  Fetched Fetch(const std::string& parameters, const std::vector<uint32_t>& prompt) {
    const auto asked = nlohmann::json::parse(parameters, nullptr, false);
    if (!asked.is_object() || !asked.value("do_remote_prefill", false)) return Fetched::kNothing;
    const bool named = asked.contains("transfer_id");
    // vLLM 0.32 ends when the caller of such a request gives up.
    if (!named && !asked.contains("remote_request_id")) return ++fatal, Fetched::kGone;
    const auto text = [&](const char* field) { return asked.value(field, std::string()); };
    const std::string path =
        Path(named ? absl::StrCat(text("remote_engine_id"), " ", text("remote_bootstrap_addr"), " ",
                                  text("transfer_id"))
                   : text("remote_request_id"));
    std::ifstream file(path);
    std::string server, kept;
    int64_t until = 0;
    file >> server >> until >> std::ws;
    std::getline(file, kept);
    // Of two that fetch it, one removes it.
    const bool found = unlink(path.c_str()) == 0;
    if (found && !Lives(server)) return Fetched::kGone;
    const bool right =
        found && absl::ToUnixNanos(MonotonicNow()) < until && kept == absl::StrJoin(prompt, " ");
    ++(right ? used : wrong);
    return right ? Fetched::kRight : Fetched::kWrong;
  }
  void OnDeath(const void* server) {
    std::lock_guard lock(mutex_);
    if (const auto of = locks_.extract(server)) close(of.mapped().file);
  }
  int count(std::atomic<int> HandedOverKv::*of) const { return this->*of; }

  std::atomic<int> made = 0, used = 0, wrong = 0, fatal = 0;

 private:
  static constexpr absl::Duration kLease = absl::Seconds(30);
  // That of a server.
  struct Lock {
    std::string name;
    int file = -1;
  };

  // Differs between processes, also between those that had the same number one after the other.
  static std::string Unique() { return absl::StrCat(getpid(), "-", absl::ToUnixNanos(MonotonicNow())); }
  std::string Path(const std::string& name) const {
    return absl::StrCat(directory_, "/", absl::StrReplaceAll(name, {{"/", "_"}}));
  }
  void Keep(const std::string& id, const void* server, const std::vector<uint32_t>& prompt) {
    std::lock_guard guard(mutex_);
    Lock& lock = locks_[server];
    if (lock.file < 0) {
      lock.name = absl::StrCat("server-", Unique());
      lock.file = open(Path(lock.name).c_str(), O_CREAT | O_RDWR | O_CLOEXEC, 0600);
      flock(lock.file, LOCK_EX);
    }
    std::ofstream(Path(id)) << lock.name << " " << absl::ToUnixNanos(MonotonicNow() + kLease) << "\n"
                            << absl::StrJoin(prompt, " ") << "\n";
  }
  bool Lives(const std::string& server) const {
    const int file = open(Path(server).c_str(), O_RDONLY | O_CLOEXEC);
    if (file < 0) return false;
    const bool held = flock(file, LOCK_SH | LOCK_NB) != 0;
    close(file);
    return held;
  }

  std::string directory_, own_;
  std::mutex mutex_;
  std::map<const void*, Lock> locks_;
};

}  // namespace bfio::testing
