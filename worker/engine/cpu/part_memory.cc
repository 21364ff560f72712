#include "worker/engine/cpu/part_memory.h"

#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <limits>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "worker/engine/model/layout.h"

namespace bfio::worker::cpu {
namespace {

int64_t MatrixBytes(const TensorView& tensor, Storage storage) {
  if (!tensor.present()) return 0;
  // Norms and biases are kept in fp32.
  if (tensor.shape.size() < 2) return 4 * tensor.elements();
  const bool bf16 = storage == Storage::kBf16 || (storage == Storage::kAuto && tensor.dtype == DType::kBF16);
  return (bf16 ? 2 : 4) * tensor.elements();
}

constexpr int64_t kNone = std::numeric_limits<int64_t>::max();

std::string Read(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

// "max" or unreadable text means no limit.
int64_t Limit(const std::string& path) {
  int64_t bytes = 0;
  return absl::SimpleAtoi(absl::StripAsciiWhitespace(Read(path)), &bytes) && bytes > 0 ? bytes : kNone;
}

// The smallest limit of the control group at `path` and all its ancestors.
int64_t LeastLimit(const std::string& mount, std::string path, absl::string_view file) {
  int64_t least = Limit(absl::StrCat(mount, "/", file));
  while (path.size() > 1) {
    least = std::min(least, Limit(absl::StrCat(mount, path, "/", file)));
    path.resize(path.rfind('/'));
  }
  return least;
}

}  // namespace

ModelBytes BytesOf(const Model& model, Storage weights) {
  const ModelConfig& config = model.config();
  ModelBytes bytes;
  bytes.ends = MatrixBytes(model.embedding(), weights) + MatrixBytes(model.final_norm(), weights);
  if (!config.tied_embeddings) bytes.ends += MatrixBytes(model.lm_head(), weights);
  const std::vector<LayerTensor> tensors = LayerTensors(config);
  for (const LayerWeights& layer : model.layers()) {
    int64_t block = 0;
    for (const LayerTensor& tensor : tensors) block += MatrixBytes(layer.*tensor.place, weights);
    bytes.block = std::max(bytes.block, block);
  }
  bytes.kv_token = PartShape(config, 1, kLanes, 1).token_bytes();
  return bytes;
}

KvShape PartShape(const ModelConfig& config, int64_t blocks, int32_t page_tokens, int64_t pages) {
  KvShape shape;
  shape.layers = blocks;
  shape.kv_heads = config.kv_heads;
  shape.head_dim = config.head_dim;
  shape.page_tokens = page_tokens;
  shape.pages = pages;
  return shape;
}

int64_t GroupLimit(absl::string_view membership, const std::string& root) {
  int64_t least = kNone;
  for (const absl::string_view line : absl::StrSplit(membership, '\n')) {
    // Format ID:CONTROLLERS:PATH; for version 2 the controllers are empty.
    const std::vector<std::string> parts = absl::StrSplit(line, absl::MaxSplits(':', 2));
    if (parts.size() != 3 || parts[2].empty() || parts[2][0] != '/') continue;
    if (parts[1].empty()) {
      least = std::min(least, LeastLimit(root, parts[2], "memory.max"));
    } else if (absl::c_linear_search(absl::StrSplit(parts[1], ','), "memory")) {
      least = std::min(least, LeastLimit(root + "/memory", parts[2], "memory.limit_in_bytes"));
    }
  }
  return least;
}

int64_t MachineMemory() {
  const int64_t machine = int64_t{sysconf(_SC_PHYS_PAGES)} * sysconf(_SC_PAGE_SIZE);
  return std::min(machine, GroupLimit(Read("/proc/self/cgroup"), "/sys/fs/cgroup"));
}

}  // namespace bfio::worker::cpu
