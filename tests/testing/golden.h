// A golden case of tests/golden: the results of transformers, and the distance of logits from them.
//
// Purpose: shared by the tests of all engines. Run from the repository's root. Threads: plain data.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "worker/engine/model/safetensors.h"

namespace bfio::testing {

inline std::string GoldenFolder(const std::string& name) {
  return "tests/golden/" + name;
}

inline std::vector<float> Floats(const worker::TensorMap& tensors, const std::string& name) {
  const worker::TensorView& view = tensors.at(name);
  std::vector<float> values(static_cast<size_t>(view.elements()));
  std::memcpy(values.data(), view.data, values.size() * sizeof(float));
  return values;
}

struct Golden {
  explicit Golden(const std::string& name) {
    std::ifstream file(GoldenFolder(name) + "/case.json");
    const nlohmann::json json = nlohmann::json::parse(file);
    tokens = json["prompt"].get<std::vector<uint32_t>>();
    prompt = static_cast<int32_t>(tokens.size());
    for (const uint32_t id : json["forced"]) tokens.push_back(id);
    rows = json["rows"].get<std::vector<int>>();
    top1 = json["top1"].get<std::vector<uint32_t>>();
    transformers_bf16 = json["transformers_bf16"]["relative_l2"];
    transformers_bf16_max = json["transformers_bf16"]["max_abs_error"];
    auto opened = worker::SafetensorsFile::Open(GoldenFolder(name) + "/logits.safetensors");
    EXPECT_TRUE(opened.ok()) << opened.status();
    logits = Floats((*opened)->tensors(), "logits");
    logsumexp = Floats((*opened)->tensors(), "logsumexp");
    margin = Floats((*opened)->tensors(), "margin");
  }

  size_t vocab() const { return logits.size() / rows.size(); }

  int32_t prompt = 0;
  // Prompt tokens and forced tokens.
  std::vector<uint32_t> tokens;
  std::vector<int> rows;
  std::vector<uint32_t> top1;
  std::vector<float> logits, logsumexp, margin;
  // Distance of transformers' bf16 results from its fp32 results: relative L2, and the largest difference of
  // a logit.
  double transformers_bf16 = 0, transformers_bf16_max = 0;
};

struct GoldenDistance {
  // Over all stored rows together.
  double relative_l2 = 0;
  double worst_row = 0;
  // The largest difference of a logit.
  double largest = 0;
};

// `logits`: [65, vocab], from the prompt's last row on.
inline GoldenDistance DistanceTo(const Golden& golden, const std::vector<float>& logits) {
  double error = 0, size = 0;
  GoldenDistance distance;
  for (size_t i = 0; i < golden.rows.size(); ++i) {
    double row_error = 0, row_size = 0;
    for (size_t id = 0; id < golden.vocab(); ++id) {
      const double wanted = golden.logits[i * golden.vocab() + id];
      const double difference = logits[static_cast<size_t>(golden.rows[i]) * golden.vocab() + id] - wanted;
      row_error += difference * difference;
      row_size += wanted * wanted;
      distance.largest = std::max(distance.largest, std::abs(difference));
    }
    distance.worst_row = std::max(distance.worst_row, std::sqrt(row_error / row_size));
    error += row_error;
    size += row_size;
  }
  distance.relative_l2 = std::sqrt(error / size);
  return distance;
}

}  // namespace bfio::testing
