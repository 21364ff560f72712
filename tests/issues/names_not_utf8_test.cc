// Found by fuzz_step_rows: a name that is not UTF-8 ended the simulator by an exception of its JSON writer.
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

#include "absl/strings/str_cat.h"
#include "tests/testing/process.h"

namespace bfio::testing {
namespace {

constexpr char kName[] = "w\xff\xc0";

void ExpectJson(const RunResult& run) {
  ASSERT_EQ(run.code, 0) << run.err;
  EXPECT_TRUE(nlohmann::json::accept(run.out)) << run.out;
}

TEST(NamesNotUtf8, AWorkersInAStepLog) {
  const std::string path = absl::StrCat(TestDirectory(), "/steps.csv");
  std::ofstream out(path);
  out << "worker,epoch,step,rank,ranks,load_tokens,active,admitted,finished,prefill_tokens,local_ns,"
         "barrier_wait_ns,gap_ns,end_ns\n";
  for (int step = 0; step < 64; ++step) {
    const int load = 1000 + 37 * step, local_ns = 5'000'000 + 100 * load;
    out << kName << ",1," << step << ",0,1," << load << ",5,1,0,0," << local_ns << ",0,2000,"
        << 6'000'000 * (step + 1) << "\n";
  }
  out.close();
  ExpectJson(RunProgram("bfio_sim", {"calibrate", absl::StrCat("--steps=", path), "--json"}));
}

TEST(NamesNotUtf8, ATracesFile) {
  const std::string path = absl::StrCat(TestDirectory(), "/", kName, ".csv");
  std::ofstream out(path);
  out << "num_prefill_tokens,num_decode_tokens\n";
  for (int i = 0; i < 100; ++i) out << 10 + i << "," << 1 + i % 7 << "\n";
  out.close();
  ExpectJson(RunProgram("bfio_sim", {absl::StrCat("--trace=", path), "--workers=2", "--batch=4", "--json"}));
}

}  // namespace
}  // namespace bfio::testing
