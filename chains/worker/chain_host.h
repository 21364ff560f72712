// The parts of chains on this server: loads, connects and ends them. Executes the pool's messages
// (ChainStage, ChainStart, ChainDrop). A server's part is a stage, or the head, which is a rank of the
// router's group like any other. Parts share the weights of the hosted blocks; weights and all KV caches
// together stay within the memory limit. Threads: one; `on_broken` is called from any.
#pragma once

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

// Options of a server of chains (chains/worker).
struct PipelineOptions {
  // HOST:PORT at which other servers of a chain connect; port 0 picks a free one. Empty: an ordinary worker.
  std::string listen;
  // HOST:PORT at which they reach this server; empty: `listen`, as bound.
  std::string address;
  // For both ends of the streams between servers; empty: plain text.
  TlsFiles tls;
  // Number of micro-batches into which a head divides a step; all may be under way at a time.
  int32_t micro_batches = 4;
};

// Makes the rank of a chain's head; the stage contains what the rank reports to the router about the chain.
using MakeHead = std::function<absl::StatusOr<std::unique_ptr<Rank>>(const v1::ChainStage& stage,
                                                                     std::unique_ptr<Engine>)>;

class ChainHost {
 public:
  struct Setup {
    // Engine and limits; the fields that a chain determines are overwritten.
    WorkerOptions options;
    PipelineOptions pipeline;
    ModelConfig config;
    // Both must outlive this.
    PartSource* source = nullptr;
    PassService* service = nullptr;
    // For the streams to neighbours.
    std::shared_ptr<grpc::ChannelCredentials> credentials;
    // Makes the head's rank with its engine.
    MakeHead make_rank;
    // Called when a part has failed, or the head's rank has ended. The owner must then call Drop.
    std::function<void(uint64_t chain, const absl::Status& why)> on_broken;
  };

  explicit ChainHost(Setup setup);
  ~ChainHost();

  // Loads a part. INVALID_ARGUMENT: not for this model; RESOURCE_EXHAUSTED: it does not fit, with the missing
  // amount.
  absl::Status Load(const v1::ChainStage& stage);
  // Opens the stream to the next server; a head starts to serve.
  absl::Status Start(uint64_t chain);
  // Ends a part, if it exists here.
  void Drop(uint64_t chain);

  // Requests from the router to drain the heads on this server; false when there are none.
  bool Leave(const std::string& reason);
  // Whether a chain has its head on this server.
  bool HasHeads() const;
  bool Has(uint64_t chain) const { return parts_.contains(chain); }
  // The parts on this server, loaded or serving.
  std::vector<v1::ChainStage> stages() const;

 private:
  struct Part {
    v1::ChainStage spec;
    // Memory of its KV cache, counted against the limit.
    int64_t kv_bytes = 0;
    // The blocks that the server hosts, which contain this part's.
    ModelPart hosted;
    // Only for a head.
    std::shared_ptr<Returns> returns;
    // Moved out by Start.
    std::unique_ptr<PartBackend> backend;
    std::unique_ptr<PassOutlet> own_outlet;
    // Owned by the stage or the head's backend; null for a head with all blocks.
    PassOutlet* outlet = nullptr;
    std::unique_ptr<Stage> stage;
    std::unique_ptr<Rank> rank;
  };

  DecodeOptions DecodeOf(const v1::ChainStage& stage) const;
  // OK when hosted blocks and caches fit, including those of the other parts.
  absl::Status CheckMemory(const ModelPart& hosted, int64_t kv_bytes) const;
  absl::StatusOr<std::unique_ptr<Part>> Make(const v1::ChainStage& stage) const;
  absl::Status StartHead(Part& part);
  std::function<void(const absl::Status&)> Broken(uint64_t chain) const;

  const Setup setup_;
  std::map<uint64_t, std::unique_ptr<Part>> parts_;
};

}  // namespace bfio::worker
