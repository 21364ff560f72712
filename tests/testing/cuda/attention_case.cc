#include "tests/testing/cuda/attention_case.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <numeric>
#include <random>
#include <utility>

namespace bfio::testing {
namespace {

using worker::gpu::Bf16;
using worker::gpu::KvLayout;

constexpr Bf16 kNan = {0xffff};

double Value(Bf16 value) {
  const uint32_t bits = static_cast<uint32_t>(value.bits) << 16;
  float result;
  std::memcpy(&result, &bits, sizeof(result));
  return result;
}

// A bf16 in (-2, 2) that is a function of all arguments.
Bf16 RandomValue(uint64_t seed, int what, int position, int head, int column) {
  uint64_t x = seed * 0x9e3779b97f4a7c15u + what;
  for (const int part : {position, head, column}) {
    x = (x ^ static_cast<uint64_t>(part)) * 0xbf58476d1ce4e5b9u;
    x ^= x >> 29;
  }
  x = (x ^ (x >> 32)) * 0x94d049bb133111ebu;
  x ^= x >> 31;
  // Sign, an exponent for [0.125, 2), any mantissa.
  const uint32_t exponent = 124 + (x >> 8) % 4;
  return {static_cast<uint16_t>((x & 1) << 15 | exponent << 7 | (x >> 16 & 0x7f))};
}

enum What { kQuery, kKey, kValue };

KvLayout LayoutOf(const worker::gpu::AttentionShape& shape) {
  return {shape.kv_heads, shape.page_tokens, shape.head_dim};
}

}  // namespace

AttentionData MakeAttentionData(const AttentionCase& attention_case) {
  const auto& shape = attention_case.shape;
  const KvLayout layout = LayoutOf(shape);
  AttentionData data;
  data.step.Clear();
  std::mt19937_64 random(attention_case.page_seed);
  int32_t pages = 3;  // pages that belong to no sequence
  for (const AttentionRun& run : attention_case.runs) {
    pages += (run.first + run.tokens + shape.page_tokens - 1) / shape.page_tokens;
  }
  std::vector<int32_t> free(pages);
  std::iota(free.begin(), free.end(), 0);
  std::shuffle(free.begin(), free.end(), random);
  data.keys.assign(layout.PoolElements(pages), kNan);
  data.values = data.keys;
  data.q_stride = shape.q_heads * shape.head_dim + 8;
  // Large enough for some weights to be clearly larger than others.
  data.scale = 1.5f / std::sqrt(static_cast<float>(shape.head_dim));
  int32_t sequence = 0;
  for (const AttentionRun& run : attention_case.runs) {
    const int32_t end = run.first + run.tokens;
    const size_t count = (end + shape.page_tokens - 1) / shape.page_tokens;
    const std::vector<int32_t> own(free.end() - count, free.end());
    free.resize(free.size() - count);
    data.step.AddRun(sequence++, run.first, std::vector<uint32_t>(run.tokens), own, true);
    for (int32_t t = 0; t < end; ++t) {
      for (int32_t head = 0; head < shape.kv_heads; ++head) {
        const int64_t to = layout.TokenOffset(own[t / shape.page_tokens], head, t % shape.page_tokens);
        for (int32_t c = 0; c < shape.head_dim; ++c) {
          data.keys[to + c] = RandomValue(run.seed, kKey, t, head, c);
          data.values[to + c] = RandomValue(run.seed, kValue, t, head, c);
        }
      }
    }
    for (int32_t t = run.first; t < end; ++t) {
      for (int32_t i = 0; i < shape.q_heads * shape.head_dim; ++i) {
        data.queries.push_back(RandomValue(run.seed, kQuery, t, i / shape.head_dim, i % shape.head_dim));
      }
      data.queries.insert(data.queries.end(), 8, kNan);
    }
  }
  return data;
}

AttentionExpectation ExpectedAttention(const AttentionCase& attention_case) {
  const auto& shape = attention_case.shape;
  const double scale = MakeAttentionData({"", shape, {}}).scale;
  AttentionExpectation expected;
  std::vector<double> weights;
  for (const AttentionRun& run : attention_case.runs) {
    // [token][kv_head][column] of the sequence.
    const int32_t end = run.first + run.tokens;
    std::vector<float> keys, values;
    for (int32_t t = 0; t < end; ++t) {
      for (int32_t i = 0; i < shape.kv_heads * shape.head_dim; ++i) {
        keys.push_back(Value(RandomValue(run.seed, kKey, t, i / shape.head_dim, i % shape.head_dim)));
        values.push_back(Value(RandomValue(run.seed, kValue, t, i / shape.head_dim, i % shape.head_dim)));
      }
    }
    for (int32_t t = run.first; t < end; ++t) {
      for (int32_t q_head = 0; q_head < shape.q_heads; ++q_head) {
        const int32_t kv_head = q_head / shape.group();
        const auto at = [&](int32_t token) { return (token * shape.kv_heads + kv_head) * shape.head_dim; };
        std::vector<double> query(shape.head_dim);
        for (int32_t c = 0; c < shape.head_dim; ++c) {
          query[c] = Value(RandomValue(run.seed, kQuery, t, q_head, c));
        }
        weights.assign(t + 1, 0);
        for (int32_t k = 0; k <= t; ++k) {
          for (int32_t c = 0; c < shape.head_dim; ++c) weights[k] += query[c] * keys[at(k) + c];
          weights[k] *= scale;
        }
        const double largest = *std::max_element(weights.begin(), weights.end());
        double sum = 0;
        for (double& weight : weights) sum += weight = std::exp(weight - largest);
        std::vector<double> out(shape.head_dim), magnitude(shape.head_dim);
        for (int32_t k = 0; k <= t; ++k) {
          for (int32_t c = 0; c < shape.head_dim; ++c) {
            out[c] += weights[k] / sum * values[at(k) + c];
            magnitude[c] += weights[k] / sum * std::abs(values[at(k) + c]);
          }
        }
        for (int32_t c = 0; c < shape.head_dim; ++c) {
          expected.out.push_back(out[c]);
          // 1e-4 covers fp32 arithmetic, mainly of the scores.
          expected.tolerance.push_back(std::abs(out[c]) / 256 + magnitude[c] * (1.0 / 256 + 1e-4));
        }
      }
    }
  }
  return expected;
}

std::string CheckAttention(const AttentionCase& attention_case, const AttentionRunner& run) {
  std::vector<Bf16> out;
  const std::string error = run(attention_case, &out);
  if (!error.empty()) return attention_case.name + ": " + error;
  const AttentionExpectation expected = ExpectedAttention(attention_case);
  if (out.size() != expected.out.size()) return attention_case.name + ": a result of another size";
  const int64_t row_size = attention_case.shape.q_heads * attention_case.shape.head_dim;
  for (size_t i = 0; i < out.size(); ++i) {
    // Not written as "greater than", because NaN must fail.
    if (!(std::abs(Value(out[i]) - expected.out[i]) <= expected.tolerance[i])) {
      return attention_case.name + ": row " + std::to_string(i / row_size) + ", element " +
             std::to_string(i % row_size) + " is " + std::to_string(Value(out[i])) + ", not " +
             std::to_string(expected.out[i]) + " +- " + std::to_string(expected.tolerance[i]);
    }
  }
  return "";
}

std::string CheckSameBits(const AttentionCase& one, const AttentionCase& other, const AttentionRunner& run) {
  const std::string name = one.name + " and " + other.name;
  const int64_t row_size = one.shape.q_heads * one.shape.head_dim;
  std::map<std::pair<uint64_t, int32_t>, std::vector<uint16_t>> rows;
  int64_t compared = 0;
  for (const AttentionCase* attention_case : {&one, &other}) {
    std::vector<Bf16> out;
    const std::string error = run(*attention_case, &out);
    if (!error.empty()) return name + ": " + error;
    size_t at = 0;
    for (const AttentionRun& part : attention_case->runs) {
      for (int32_t t = part.first; t < part.first + part.tokens; ++t) {
        std::vector<uint16_t> bits;
        for (int64_t i = 0; i < row_size; ++i) bits.push_back(out[at++].bits);
        const auto [known, added] = rows.try_emplace({part.seed, t}, bits);
        if (added) continue;
        ++compared;
        if (known->second != bits) {
          return name + ": sequence " + std::to_string(part.seed) + " differs at token " + std::to_string(t);
        }
      }
    }
  }
  return compared > 0 ? "" : name + ": no token in common";
}

}  // namespace bfio::testing
