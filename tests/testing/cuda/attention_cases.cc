#include <algorithm>
#include <initializer_list>
#include <random>
#include <utility>

#include "tests/testing/cuda/attention_case.h"

namespace bfio::testing {
namespace {

using worker::gpu::AttentionShape;

// One decode for each length.
std::vector<AttentionRun> Decodes(std::initializer_list<int32_t> lengths, uint64_t seed) {
  std::vector<AttentionRun> runs;
  for (const int32_t length : lengths) runs.push_back({seed++, length - 1, 1});
  return runs;
}

AttentionCase RandomCase(uint64_t seed, bool large) {
  std::mt19937_64 random(seed);
  const auto below = [&](int32_t n) { return static_cast<int32_t>(random() % n); };
  AttentionCase result;
  result.name = "random " + std::to_string(seed);
  const int32_t kv_heads = 1 + below(2);
  const int32_t page_tokens = 16 << below(3);
  result.shape = {kv_heads * (1 + below(16)), kv_heads, 16 << below(4), page_tokens};
  for (int32_t i = 0, n = 1 + below(4); i < n; ++i) {
    const int32_t kinds[] = {1, 2 + below(4), 10 + below(60)};
    result.runs.push_back(
        {seed * 100 + i, below(large ? 5000 : 400), kinds[below(3)] + (large ? below(100) : 0)});
  }
  result.page_seed = seed;
  result.grid = {1 + below(7), 1 + below(7), 1 + below(3)};
  result.blocks = 100 * below(2);
  return result;
}

}  // namespace

std::vector<AttentionCase> AttentionCases(bool large) {
  const AttentionShape llama = {8, 2, 128, 16};
  std::vector<AttentionCase> cases = {
      // Lengths around the borders of pages, tiles and chunks.
      {"decodes", llama, Decodes({1, 2, 15, 16, 17, 63, 64, 65, 127, 128, 129}, 1)},
      {"decodes of several chunks", llama, Decodes({255, 256, 257, 320, 511, 512, 513}, 20)},
      {"a prompt of one token", llama, {{40, 0, 1}}},
      {"prompts", llama, {{41, 0, 15}, {42, 0, 16}, {43, 0, 17}, {44, 0, 65}}},
      {"a prompt of several chunks", {4, 1, 128, 16}, {{45, 0, 280}}},
      {"pieces of prompts", llama, {{46, 250, 12}, {47, 240, 40}, {48, 100, 3}, {49, 254, 4}}},
      {"decodes with prompts", llama, {{50, 300, 1}, {51, 17, 1}, {52, 0, 40}, {53, 64, 20}}},
      {"one block", llama, {{54, 300, 1}, {55, 70, 1}, {56, 0, 33}}, 1, {1, 1, 1}},
      {"a prompt in parts", llama, {{64, 500, 35}, {65, 250, 20}}, 1, {3, 5, 2}, 100},
      {"a prompt in parts of two chunks", llama, {{66, 1000, 20}}, 1, {3, 5, 2}, 8},
      // kSegmentChunks chunks are 4096 tokens.
      {"segments", {3, 1, 16, 16}, Decodes({4095, 4096, 4097, 300, 8193, 21000}, 90), 1, {4, 6, 3}},
      {"segments of wide heads", llama, {{96, 4299, 1}, {97, 40, 1}}, 1, {3, 5, 2}},
      {"a prompt beyond a segment", {3, 1, 32, 16}, {{98, 4080, 40}, {99, 8180, 25}}, 1, {2, 3, 2}},
      {"a prompt in parts beyond a segment",
       {2, 1, 16, 16},
       {{89, 4090, 12}, {88, 100, 20}},
       1,
       {2, 3, 2},
       64},
      {"more blocks than work", llama, {{57, 300, 1}, {58, 70, 1}, {59, 0, 33}}, 1, {40, 40, 40}},
  };
  // The two-stage kernels, in which the end of an item, the wrap-around of stages and the end of the work
  // occur at other places.
  for (const char* const name :
       {"decodes", "decodes of several chunks", "prompts", "a prompt of several chunks", "pieces of prompts",
        "one block", "a prompt in parts"}) {
    AttentionCase two =
        *std::find_if(cases.begin(), cases.end(), [&](const auto& c) { return c.name == name; });
    two.name += " with two stages";
    two.grid.stages = 2;
    cases.push_back(two);
  }
  for (const int32_t head_dim : {16, 32, 64, 128}) {
    for (const int32_t group : {1, 3, 7, 16}) {
      cases.push_back({"head_dim " + std::to_string(head_dim) + ", group " + std::to_string(group),
                       {group, 1, head_dim, head_dim == 64 ? 64 : 32},
                       {{60, 99, 1}, {61, 260, 1}, {62, 30, 2}, {63, 5, 70}}});
    }
  }
  for (uint64_t seed = 100; seed < (large ? 140 : 116); ++seed) cases.push_back(RandomCase(seed, large));
  if (large) {
    cases.push_back(
        {"long contexts", {32, 8, 128, 16}, Decodes({100000, 4096, 5000, 70000}, 70), 1, {264, 264, 264}});
    cases.push_back({"a long prompt", {32, 8, 128, 16}, {{80, 4000, 250}}, 1, {264, 264, 264}, 264});
  }
  return cases;
}

std::vector<std::pair<AttentionCase, AttentionCase>> SameBitsCases(bool large) {
  std::vector<std::pair<AttentionCase, AttentionCase>> pairs;
  for (const AttentionShape& shape :
       {AttentionShape{8, 2, 128, 16}, AttentionShape{3, 1, 64, 32}, AttentionShape{7, 1, 32, 16}}) {
    const int32_t end = large ? 3000 : 330;
    // The whole prompt in one run...
    const AttentionCase whole = {"whole", shape, {{1, 0, end}}};
    // ... and some of its tokens as decodes, alone and in a batch, on other pages and with another grid.
    for (const int32_t token : {63, 255, end - 1}) {
      pairs.push_back({whole, {"alone at " + std::to_string(token), shape, {{1, token, 1}}, 7, {1, 1, 1}}});
    }
    AttentionCase batch = {"in a batch", shape, {{2, 90, 1}, {3, 290, 1}}, 9, {2, 11, 5}};
    for (const int32_t token : {0, 62, 64, 200, 254, 256, 320}) batch.runs.push_back({1, token, 1});
    batch.runs.push_back({4, 13, 70});
    pairs.push_back({whole, batch});
    // Chunks of every kind: long tiles that start at any position, and runs short enough for short tiles.
    AttentionCase pieces = {"in pieces", shape, {}, 11, {5, 3, 1}};
    for (const auto& [first, tokens] : {std::pair{3, 40}, {43, 2}, {60, 5}, {65, 4}, {250, 3}, {254, 60}}) {
      pieces.runs.push_back({1, first, tokens});
    }
    pieces.blocks = 64;
    pairs.push_back({whole, pieces});
    AttentionShape other_pages = shape;
    other_pages.page_tokens = 64;
    if (shape.head_dim == 128) {
      for (AttentionCase two : {batch, pieces}) {
        two.name += " with two stages";
        two.grid.stages = 2;
        pairs.push_back({whole, two});
      }
    }
    pairs.push_back({pieces, {"on pages of 64", other_pages, pieces.runs, 13, {4, 4, 4}}});
  }
  // Across the border of a segment: in one chunk, as decodes alone and in a batch, and split into many
  // blocks.
  for (const AttentionShape& shape : {AttentionShape{2, 1, 16, 16}, AttentionShape{4, 1, 128, 32}}) {
    const AttentionCase piece = {"a piece across segments", shape, {{1, 4088, 22}}};
    for (const int32_t token : {4095, 4096, 4109}) {
      pairs.push_back({piece, {"alone at " + std::to_string(token), shape, {{1, token, 1}}, 17, {1, 1, 1}}});
    }
    AttentionCase cut = piece;
    cut.name = "the same in parts";
    cut.blocks = 64;
    pairs.push_back({piece, cut});
    pairs.push_back({piece,
                     {"among others",
                      shape,
                      {{2, 90, 1}, {1, 4090, 3}, {3, 4300, 1}, {1, 4097, 1}, {1, 4100, 2}},
                      19,
                      {2, 5, 3}}});
  }
  return pairs;
}

}  // namespace bfio::testing
