// A worker's offer of its tokenizer (WorkerLink.OfferTokenizer). Only an attached worker may offer one, for
// the model of its hello. Receives the files within bounds, checks their names, and hands them over when all
// have come. No file is written here: names are checked because gateways unpack the files. Ownership,
// threads: ServerCall.
#pragma once

#include <grpcpp/grpcpp.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "bfio/v1/worker.pb.h"
#include "common/base/fair_share.h"
#include "common/base/mutex.h"
#include "common/net/server_call.h"
#include "common/tokenizer/tokenizer_files.h"
#include "router/group/worker_messages.h"

namespace bfio::router {

// Which workers are members of a group. A worker's calls beside its stream show the worker_id and the random
// worker_instance of its hello. Threads: any.
class AttachedWorkers {
 public:
  struct Worker {
    MemberId member = 0;
    uint64_t instance = 0;
    // WorkerHello::model.
    std::string model;
  };

  void Add(const std::string& worker_id, Worker worker) {
    MutexLock lock(&mutex_);
    workers_.insert_or_assign(worker_id, std::move(worker));
  }
  void Remove(const std::string& worker_id, MemberId member) {
    MutexLock lock(&mutex_);
    const auto it = workers_.find(worker_id);
    if (it != workers_.end() && it->second.member == member) workers_.erase(it);
  }
  // The model of that worker; empty: there is none.
  std::optional<std::string> ModelOf(const std::string& worker_id, uint64_t instance) const {
    MutexLock lock(&mutex_);
    const auto it = workers_.find(worker_id);
    if (it == workers_.end() || instance == 0 || it->second.instance != instance) return std::nullopt;
    return it->second.model;
  }

 private:
  mutable Mutex mutex_;
  absl::flat_hash_map<std::string, Worker> workers_ ABSL_GUARDED_BY(mutex_);
};

// The receiver of tokenizers. Called on gRPC's threads; must not block.
struct TokenizerReceiver {
  // `model`: WorkerHello::model.
  std::function<bool(const std::string& model)> wanted = [](const std::string&) { return false; };
  // `done` is called once, on any thread, with OK, or with the reason why the files cannot be used.
  std::function<void(const std::string& model, std::string directory, TokenizerFiles files,
                     std::function<void(const absl::Status&)> done)>
      take;
};

class TokenizerUpload final : public ServerCall<TokenizerUpload, v1::TokenizerPart, v1::TokenizerReceipt> {
 public:
  // Offers that are received at once, of which an address has its share: each may hold
  // kMaxOfferedTokenizerBytes.
  static constexpr int64_t kMostAtOnce = 4;
  // Bound of the number of files; a tokenizer has about ten.
  static constexpr size_t kMostFiles = 64;

  // `context` is the call's; `receiver` and `attached` outlive it; `place` is its place among the calls.
  static std::shared_ptr<TokenizerUpload> Create(grpc::CallbackServerContext* context,
                                                 const TokenizerReceiver* receiver,
                                                 const AttachedWorkers* attached,
                                                 std::unique_ptr<CapacityShare> place);

 private:
  TokenizerUpload(grpc::CallbackServerContext* context, const TokenizerReceiver* receiver,
                  const AttachedWorkers* attached, std::unique_ptr<CapacityShare> place)
      : ServerCall(context), receiver_(receiver), attached_(attached), place_(std::move(place)) {}

  void OnMessage(v1::TokenizerPart part) override;
  void OnNoMessage() override { End(absl::InvalidArgumentError("the tokenizer's files are not complete")); }
  bool Next(v1::TokenizerReceipt& receipt) override ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  absl::Status CheckFirst(const v1::TokenizerPart& part);
  absl::Status Add(v1::TokenizerPart& part);
  void End(const absl::Status& status);

  const TokenizerReceiver* const receiver_;
  const AttachedWorkers* const attached_;
  // Used by one gRPC callback at a time.
  // Empty before the first part.
  std::optional<std::string> model_;
  std::string directory_;
  uint64_t total_bytes_ = 0, bytes_ = 0;
  TokenizerFiles files_;
  bool received_ ABSL_GUARDED_BY(mutex_) = false;
  std::unique_ptr<CapacityShare> place_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace bfio::router
