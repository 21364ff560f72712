// A worker's offer of its tokenizer (WorkerLink.OfferTokenizer). Receives the files within bounds, checks
// their names, and hands them over when all have come. No file is written here: names are checked because
// gateways unpack the files. Ownership, threads: ServerCall.
#ifndef BFIO_ROUTER_WORKER_LINK_TOKENIZER_UPLOAD_H_
#define BFIO_ROUTER_WORKER_LINK_TOKENIZER_UPLOAD_H_

#include <grpcpp/grpcpp.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "bfio/v1/worker.pb.h"
#include "common/net/server_call.h"
#include "common/tokenizer/tokenizer_files.h"

namespace bfio::router {

// The receiver of tokenizers. Called on gRPC's threads; must not block.
struct TokenizerReceiver {
  std::function<bool()> wanted = [] { return false; };
  // `done` is called once, on any thread, with OK, or with the reason why the files cannot be used.
  std::function<void(std::string directory, TokenizerFiles files,
                     std::function<void(const absl::Status&)> done)>
      take;
};

class TokenizerUpload final : public ServerCall<TokenizerUpload, v1::TokenizerPart, v1::TokenizerReceipt> {
 public:
  // Offers that are received at once: each may hold kMaxOfferedTokenizerBytes.
  static constexpr int64_t kMostAtOnce = 4;
  // Bound of the number of files; a tokenizer has about ten.
  static constexpr size_t kMostFiles = 64;

  // `context` is the call's; `receiver` and `open`, which counts the calls, outlive it.
  static std::shared_ptr<TokenizerUpload> Create(grpc::CallbackServerContext* context,
                                                 const TokenizerReceiver* receiver,
                                                 std::atomic<int64_t>* open);
  ~TokenizerUpload() override { Release(); }

 private:
  TokenizerUpload(grpc::CallbackServerContext* context, const TokenizerReceiver* receiver,
                  std::atomic<int64_t>* open)
      : ServerCall(context), receiver_(receiver), open_(open) {
    open->fetch_add(1, std::memory_order_relaxed);
  }

  void OnMessage(v1::TokenizerPart part) override;
  void OnNoMessage() override { End(absl::InvalidArgumentError("the tokenizer's files are not complete")); }
  bool Next(v1::TokenizerReceipt& receipt) override ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  absl::Status CheckFirst(const v1::TokenizerPart& part);
  absl::Status Add(v1::TokenizerPart& part);
  // Called before the peer receives the result, so that its next offer is admitted.
  void Release() {
    if (auto* open = open_.exchange(nullptr)) open->fetch_sub(1, std::memory_order_relaxed);
  }
  void End(const absl::Status& status);

  const TokenizerReceiver* const receiver_;
  // Null once released.
  std::atomic<std::atomic<int64_t>*> open_;
  // Used by one gRPC callback at a time.
  std::string directory_;
  uint64_t total_bytes_ = 0, bytes_ = 0;
  TokenizerFiles files_;
  bool received_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace bfio::router

#endif  // BFIO_ROUTER_WORKER_LINK_TOKENIZER_UPLOAD_H_
