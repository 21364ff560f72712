// Calibration recovers known costs from step logs with noise and outliers, and reports what a log does not
// determine.
#include "tools/sim/calibrate/calibration.h"

#include <gmock/gmock.h>

#include "absl/strings/str_cat.h"
#include "common/base/rng.h"

namespace bfio::sim {
namespace {

using ::testing::HasSubstr;

struct Truth {
  double c = 5e-3, tl = 1e-7, prefill = 2e-6;
  // Standard deviation of the local time, relative to the local time.
  double noise = 0.01;
  // Share of the rows whose local time is multiplied by 2 to 10.
  double outliers = 0.05;
  bool loads_vary = true;
  bool with_prefill = true;
  // Prefill tokens in proportion to the load in every step, so that their costs cannot be separated.
  bool together = false;
  double slow_worker = 1;
  int workers = 4, steps = 1000;
};

StepRows Synthetic(const Truth& truth, uint64_t seed) {
  Rng rng(seed);
  StepRows rows;
  for (int w = 0; w < truth.workers; ++w) rows.workers.push_back(absl::StrCat("worker", w));
  for (int step = 1; step <= truth.steps; ++step) {
    for (int w = 0; w < truth.workers; ++w) {
      StepSample sample;
      sample.worker = w;
      sample.epoch = 1;
      sample.step = step;
      sample.load_tokens = truth.loads_vary ? 20'000 + 60'000 * rng.Uniform() : 50'000;
      if (truth.with_prefill && rng.Below(5) == 0) sample.prefill_tokens = 1 + rng.Below(4000);
      if (truth.together) sample.prefill_tokens = sample.load_tokens * 0.1;
      double local = truth.c + truth.tl * sample.load_tokens + truth.prefill * sample.prefill_tokens;
      if (w == 2) local *= truth.slow_worker;
      local *= 1 + truth.noise * rng.Normal();
      if (rng.Uniform() < truth.outliers) local *= 2 + 8 * rng.Uniform();
      sample.local_s = local;
      sample.barrier_wait_s = 3e-5 + (w == step % truth.workers ? 0 : 1e-3 * rng.Uniform());
      if (step > 1) sample.gap_s = 1e-5;
      rows.samples.push_back(sample);
    }
  }
  return rows;
}

using Json = nlohmann::ordered_json;

double At(const Json& found, const char* coefficient) {
  EXPECT_FALSE(found[coefficient].is_null()) << coefficient;
  return found[coefficient]["value"];
}

TEST(Calibration, KnownCostsAreFoundDespiteNoiseAndOutliers) {
  for (uint64_t seed = 1; seed <= 10; ++seed) {
    const Truth truth;
    const auto found = Calibrate(Synthetic(truth, seed));
    ASSERT_TRUE(found.ok()) << found.status();
    const double c = At(*found, "c_s"), tl = At(*found, "tl_s_per_token");
    EXPECT_NEAR(c / truth.c, 1, 0.005);
    EXPECT_NEAR(tl / truth.tl, 1, 0.01);
    EXPECT_NEAR(At(*found, "prefill_s_per_token") / truth.prefill, 1, 0.01);
    // The reported standard error is right: the deviation is below 5 of them.
    const double c_error = (*found)["c_s"]["standard_error"],
                 tl_error = (*found)["tl_s_per_token"]["standard_error"];
    EXPECT_LT(std::abs(c - truth.c), 5 * c_error);
    EXPECT_LT(std::abs(tl - truth.tl), 5 * tl_error);
    EXPECT_LT(tl_error, 0.01 * truth.tl);
    EXPECT_NEAR((*found)["outliers"].get<double>() / (*found)["rows"].get<double>(), 0.05, 0.015);
    EXPECT_GT((*found)["r_squared"], 0.9);
    EXPECT_NEAR((*found)["barrier_s"], 3e-5, 1e-9);
    EXPECT_NEAR((*found)["gap_s"], 1e-5, 1e-9);
    EXPECT_TRUE((*found)["warnings"].empty()) << (*found)["warnings"];
  }
}

// Logs that do not determine every cost.
Json Found(const Truth& truth) {
  const auto found = Calibrate(Synthetic(truth, 1));
  EXPECT_TRUE(found.ok()) << found.status();
  return *found;
}

TEST(Calibration, WhatALogDoesNotDetermineIsAbsentAndSaid) {
  const Json constant = Found({.loads_vary = false});
  EXPECT_TRUE(constant["tl_s_per_token"].is_null());
  EXPECT_NEAR(At(constant, "c_s"), Truth().c + Truth().tl * 50'000, 1e-4);
  EXPECT_THAT(constant["warnings"].dump(), HasSubstr("the load hardly varies"));
  EXPECT_THAT(constant["sim_flags"].dump(), HasSubstr("--tl=0 "));
  const Json decodes = Found({.with_prefill = false});
  EXPECT_TRUE(decodes["prefill_s_per_token"].is_null());
  EXPECT_FALSE(decodes["tl_s_per_token"].is_null());
  EXPECT_THAT(decodes["warnings"].dump(), HasSubstr("0 of 4000 rows have prefill"));
  EXPECT_THAT(decodes["sim_flags"].dump(), ::testing::Not(HasSubstr("--prefill")));
  const Json together = Found({.together = true});
  EXPECT_TRUE(together["prefill_s_per_token"].is_null());
  EXPECT_THAT(together["warnings"].dump(), HasSubstr("its cost cannot be determined"));
  EXPECT_THAT(Calibrate(Synthetic({.steps = 5}, 1)).status().message(),
              HasSubstr("at least 64 usable ones are needed"));
}

TEST(Calibration, ASlowWorkerIsReported) {
  const Json found = Found({.slow_worker = 1.2, .workers = 8});
  for (const Json& worker : found["workers"]) EXPECT_EQ(worker["slow"], worker["worker"] == "worker2");
  EXPECT_THAT(found["warnings"].dump(), HasSubstr("worker2 is "));
}

constexpr char kHeader[] =
    "worker,epoch,step,rank,ranks,load_tokens,active,admitted,finished,prefill_tokens,local_ns,barrier_wait_"
    "ns,gap_ns,"
    "end_ns\n";

TEST(StepRows, ColumnsAreFoundByNameAndBadLinesCounted) {
  StepRows rows;
  std::string header = kHeader;
  header.insert(header.size() - 1, ",batch_tokens,prefill_pairs,decode_context");
  for (const std::string& text : {absl::StrCat(kHeader,
                                               "a#0,1,1,0,2,100,3,1,0,50,1000,200,,9\n"
                                               "a#1,1,1,1,2,120,3,1,0,0,1500,10,30,9\n"
                                               "a#1,1,2,1,2,nonsense,3,1,0,0,1500,10,30,9\n"
                                               "a#0,1,2,0,2,1"),
                                  absl::StrCat(header, "a#0,1,1,0,2,100,3,1,0,50,1000,200,,9,53,1250,600\n",
                                               "a#0,1,1,0,2,100,3,1,0,50,1000,200,,9,x,1250,600\n")})
    ASSERT_TRUE(ParseStepRows(text, "x", rows).ok());
  ASSERT_EQ(rows.samples.size(), 3u);
  EXPECT_EQ(rows.bad_lines, 3);
  EXPECT_EQ(rows.first_bad, "x, line 4");
  EXPECT_EQ(rows.samples[0].load_tokens, 100);
  EXPECT_LT(rows.samples[0].gap_s, 0);
  EXPECT_EQ(rows.samples[0].batch_tokens, 0);
  EXPECT_DOUBLE_EQ(rows.samples[1].gap_s, 30e-9);
  EXPECT_DOUBLE_EQ(rows.samples[1].local_s, 1.5e-6);
  EXPECT_EQ(rows.samples[2].batch_tokens, 53) << "columns that newer logs have";
  EXPECT_EQ(rows.samples[2].decode_context, 600);
  EXPECT_THAT(rows.workers, ::testing::ElementsAre("a#0", "a#1"));
  EXPECT_THAT(ParseStepRows("a,b\n1,2\n", "x", rows).message(), HasSubstr("x: no column 'worker'"));
  EXPECT_TRUE(ParseStepRows("", "x", rows).ok());
  EXPECT_EQ(ReadStepRows({"/no/such/log"}).status().code(), absl::StatusCode::kNotFound);
}

TEST(BatchCalibrationTest, KnownBatchCostsAreFound) {
  for (const int64_t b0 : {0, 64}) {
    Rng rng(2);
    StepRows rows;
    rows.workers = {"a#0"};
    for (int step = 1; step <= 3000; ++step) {
      StepSample sample;
      sample.step = step;
      const double decodes = 1 + static_cast<double>(rng.Below(60));
      sample.decode_context = decodes * (200 + 800 * rng.Uniform());
      sample.batch_tokens = decodes;
      sample.load_tokens = sample.decode_context;
      if (rng.Below(3) == 0) {
        const double piece = 1 + static_cast<double>(rng.Below(450));
        sample.batch_tokens += piece;
        sample.prefill_pairs = piece * (4000 * rng.Uniform() + piece / 2);
        sample.prefill_tokens = piece;
      }
      sample.local_s = 2e-3 + 1e-5 * std::max(0.0, sample.batch_tokens - static_cast<double>(b0)) +
                       1e-9 * sample.prefill_pairs + 3e-8 * sample.decode_context;
      sample.local_s *= (1 + 0.01 * rng.Normal()) * (rng.Below(30) == 0 ? 5 : 1);
      rows.samples.push_back(sample);
    }
    const Json found = (*Calibrate(rows))["batch"];
    EXPECT_EQ(found["b0_tokens"], b0);
    EXPECT_NEAR(At(found, "c_s") / 2e-3, 1, 0.02);
    EXPECT_NEAR(At(found, "a_s_per_token") / 1e-5, 1, 0.02);
    EXPECT_NEAR(At(found, "k1_s_per_pair") / 1e-9, 1, 0.05);
    EXPECT_NEAR(At(found, "k2_s_per_token") / 3e-8, 1, 0.05);
    EXPECT_NEAR(found["median_error"], 0.0067, 0.002);
  }
}

TEST(BatchCalibrationTest, OldLogsAndEqualBatchesGiveNoBatchCosts) {
  StepRows rows = Synthetic({}, 1);
  EXPECT_TRUE((*Calibrate(rows))["batch"].is_null());
  for (StepSample& sample : rows.samples) {
    sample.batch_tokens = 8;
    sample.decode_context = 100;
  }
  EXPECT_TRUE((*Calibrate(rows))["batch"].is_null());
}

}  // namespace
}  // namespace bfio::sim
