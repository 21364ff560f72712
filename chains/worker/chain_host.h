// The parts of chains that this server has: loads them, connects them, ends them.
//
// Purpose: carries out what the pool says (ChainStage, ChainStart, ChainDrop). A server's part is a stage, or
// the head, which is a rank of the router's group like any other. Parts share the weights of the blocks that
// are hosted; weights and all KV caches together stay within the memory limit. Threads: one; `on_broken` is
// called from any.
#ifndef BFIO_CHAINS_WORKER_CHAIN_HOST_H_
#define BFIO_CHAINS_WORKER_CHAIN_HOST_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "bfio/v1/pipeline.pb.h"
#include "chains/pipeline/returns.h"
#include "chains/pipeline/stage.h"
#include "chains/worker/pass_outlet.h"
#include "chains/worker/pass_service.h"
#include "common/net/tls.h"
#include "worker/engine/decode/part_backend.h"
#include "worker/engine/model/model_config.h"
#include "worker/link/rank.h"
#include "worker/link/worker.h"

namespace bfio::worker {

// A server of chains (chains/worker).
struct PipelineOptions {
  // HOST:PORT where other servers of a chain come in; port 0 picks a free one. Empty: an ordinary worker.
  std::string listen;
  // HOST:PORT under which they reach it; empty: `listen`, as bound.
  std::string address;
  // Of both ends of the streams between servers; empty: plain text.
  TlsFiles tls;
  // A head cuts a step into so many.
  int32_t micro_batches = 4;
};

// The rank of a chain's head; what the stage says of the chain goes to the router with it.
using MakeHead = std::function<absl::StatusOr<std::unique_ptr<Rank>>(const v1::ChainStage& stage,
                                                                     std::unique_ptr<Engine>)>;

class ChainHost {
 public:
  struct Setup {
    // Of the engine and the limits; less what a chain says.
    WorkerOptions options;
    PipelineOptions pipeline;
    ModelConfig config;
    // Both outlive this.
    PartSource* source = nullptr;
    PassService* service = nullptr;
    // For the streams to neighbours.
    std::shared_ptr<grpc::ChannelCredentials> credentials;
    // Makes the head's rank around its engine.
    MakeHead make_rank;
    // A part cannot go on; Drop is the owner's to call. Also when the head's rank has ended.
    std::function<void(uint64_t chain, const absl::Status& why)> on_broken;
  };

  explicit ChainHost(Setup setup);
  ~ChainHost();

  // Loads a part. INVALID_ARGUMENT: not for this model; RESOURCE_EXHAUSTED: it does not fit, and by how much.
  absl::Status Load(const v1::ChainStage& stage);
  // Opens the way to the next server; a head begins to serve.
  absl::Status Start(uint64_t chain);
  // Ends a part, if it is here.
  void Drop(uint64_t chain);

  // Asks the router to drain the heads here; false when there are none.
  bool Leave(const std::string& reason);
  // Of any chain.
  bool HasHeads() const;
  bool Has(uint64_t chain) const { return parts_.contains(chain); }
  // What is here, loaded or serving.
  std::vector<v1::ChainStage> stages() const;

 private:
  struct Part {
    v1::ChainStage spec;
    // Of the limit, what its cache takes.
    int64_t kv_bytes = 0;
    // What the server hosts, of which this is a part.
    ModelPart hosted;
    // A head's.
    std::shared_ptr<Returns> returns;
    // Handed on by Start.
    std::unique_ptr<PartBackend> backend;
    std::unique_ptr<PassOutlet> own_outlet;
    // Wherever it is; null where a head has all blocks.
    PassOutlet* outlet = nullptr;
    std::unique_ptr<Stage> stage;
    std::unique_ptr<Rank> rank;
  };

  DecodeOptions DecodeOf(const v1::ChainStage& stage) const;
  // OK when hosted blocks and caches fit, those of the other parts included.
  absl::Status CheckMemory(const ModelPart& hosted, int64_t kv_bytes) const;
  absl::StatusOr<std::unique_ptr<Part>> Make(const v1::ChainStage& stage) const;
  absl::Status StartHead(Part& part);
  std::function<void(const absl::Status&)> Broken(uint64_t chain) const;

  const Setup setup_;
  std::map<uint64_t, std::unique_ptr<Part>> parts_;
};

}  // namespace bfio::worker

#endif  // BFIO_CHAINS_WORKER_CHAIN_HOST_H_
