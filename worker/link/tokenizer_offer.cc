#include "worker/link/tokenizer_offer.h"

#include <chrono>

#include "bfio/v1/worker.grpc.pb.h"
#include "common/base/spdlog.h"
#include "common/tokenizer/tokenizer_files.h"
#include "grpcpp/grpcpp.h"

namespace bfio::worker {
namespace {

// The size that worker.proto gives.
constexpr size_t kPartBytes = size_t{1} << 20;

// False: the router has ended the call.
bool Write(v1::TokenizerPart part, const TokenizerFiles& files,
           grpc::ClientWriter<v1::TokenizerPart>& writer) {
  uint64_t bytes = 0;
  for (const auto& [name, content] : files) bytes += content.size();
  part.set_total_bytes(bytes);
  for (const auto& [name, content] : files) {
    for (size_t at = 0; at < content.size(); at += kPartBytes) {
      part.set_file(name);
      part.set_data(content.substr(at, kPartBytes));
      if (!writer.Write(part)) return false;
      part.Clear();
    }
  }
  return true;
}

}  // namespace

void TokenizerOffer::Send(const std::shared_ptr<grpc::Channel>& channel, const std::string& worker_id,
                          uint64_t instance, absl::Duration patience) {
  if (directory_.empty()) return;
  const absl::StatusOr<TokenizerFiles> files = ReadTokenizerFiles(directory_, kMaxOfferedTokenizerBytes);
  if (!files.ok()) {
    // A model without a tokenizer is usual, for benchmarks.
    if (!absl::IsNotFound(files.status()))
      spdlog::warn("cannot send the tokenizer to the router: {}", std::string(files.status().message()));
    return;
  }
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + absl::ToChronoMilliseconds(patience));
  {
    MutexLock lock(&mutex_);
    if (cancelled_) return;
    context_ = &context;
  }
  v1::TokenizerReceipt receipt;
  const auto stub = v1::WorkerLink::NewStub(channel);
  const auto writer = stub->OfferTokenizer(&context, &receipt);
  v1::TokenizerPart first;
  first.set_directory(directory_);
  first.set_worker_id(worker_id);
  first.set_worker_instance(instance);
  if (Write(std::move(first), *files, *writer)) writer->WritesDone();
  const grpc::Status status = writer->Finish();
  {
    MutexLock lock(&mutex_);
    context_ = nullptr;
  }
  // A router of an earlier version takes none.
  if (!status.ok() && status.error_code() != grpc::StatusCode::UNIMPLEMENTED)
    spdlog::warn("the router rejected the tokenizer in {}: {}", directory_, status.error_message());
}

void TokenizerOffer::Cancel() {
  MutexLock lock(&mutex_);
  cancelled_ = true;
  if (context_ != nullptr) context_->TryCancel();
}

}  // namespace bfio::worker
