// Workers' measurements as the edge converts them.
#include <gtest/gtest.h>

#include <limits>
#include <string>

#include "router/worker_link/from_wire.h"

namespace bfio::router {
namespace {

v1::StepCost GoodCost() {
  v1::StepCost cost;
  cost.mutable_c_s()->set_value(0.005);
  cost.mutable_c_s()->set_standard_error(1e-5);
  cost.mutable_tl_s_per_token()->set_value(1e-7);
  cost.mutable_tl_s_per_token()->set_standard_error(1e-9);
  cost.mutable_prefill_s_per_token()->set_value(0);
  cost.set_residual_s(1e-5);
  cost.set_steps(640);
  cost.set_outliers(3);
  return cost;
}

TEST(Measurements, ValidCostsAreConverted) {
  const auto converted = ToCost(GoodCost());
  ASSERT_TRUE(converted.has_value());
  EXPECT_EQ(converted->c->value, 0.005);
  EXPECT_EQ(converted->c->standard_error, 1e-5);
  EXPECT_EQ(converted->tl->value, 1e-7);
  EXPECT_EQ(converted->prefill->value, 0);
  EXPECT_EQ(converted->residual_s, 1e-5);
  EXPECT_EQ(converted->steps, 640);
  EXPECT_EQ(converted->outliers, 3);
  const auto unknown = ToCost(v1::StepCost());
  ASSERT_TRUE(unknown.has_value());
  EXPECT_FALSE(unknown->c || unknown->tl || unknown->prefill);
}

TEST(Measurements, InvalidCostsAreDropped) {
  for (const double bad :
       {std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity(), -1e-9, 1e30}) {
    for (int field = 0; field < 5; ++field) {
      v1::StepCost cost = GoodCost();
      if (field == 0) cost.mutable_c_s()->set_value(bad);
      if (field == 1) cost.mutable_tl_s_per_token()->set_value(bad);
      if (field == 2) cost.mutable_tl_s_per_token()->set_standard_error(bad);
      if (field == 3) cost.mutable_prefill_s_per_token()->set_value(bad);
      if (field == 4) cost.set_residual_s(bad);
      EXPECT_FALSE(ToCost(cost).has_value()) << bad << " " << field;
    }
  }
  v1::StepCost cost = GoodCost();
  cost.set_steps(std::numeric_limits<uint64_t>::max());
  EXPECT_FALSE(ToCost(cost).has_value());
}

v1::Energy Reading(const std::string& device, double scale) {
  v1::Energy energy;
  energy.set_device(device);
  energy.set_busy_j(100 * scale);
  energy.set_barrier_j(10 * scale);
  energy.set_parked_j(scale);
  return energy;
}

TEST(Measurements, ValidEnergyReadingsAreConverted) {
  v1::Energy energy = Reading("x", 2);
  energy.set_busy_s(3);
  energy.set_watts(50);
  const auto converted = ToEnergy(energy);
  ASSERT_TRUE(converted.has_value());
  EXPECT_EQ(converted->device, "x");
  EXPECT_EQ(converted->busy_j, 200);
  EXPECT_EQ(converted->barrier_j, 20);
  EXPECT_EQ(converted->parked_j, 2);
  EXPECT_EQ(converted->busy_s, 3);
  EXPECT_EQ(converted->watts, 50);
  EXPECT_FALSE(converted->idle_watts.has_value());
  energy.set_idle_watts(0);
  EXPECT_EQ(ToEnergy(energy)->idle_watts, 0);
}

TEST(Measurements, InvalidEnergyReadingsAreDropped) {
  EXPECT_FALSE(ToEnergy(Reading("", 1)).has_value());
  EXPECT_FALSE(ToEnergy(Reading(std::string(1000, 'x'), 1)).has_value());
  for (const double bad :
       {std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity(), -1.0}) {
    v1::Energy energy = Reading("x", 1);
    energy.set_watts(bad);
    EXPECT_FALSE(ToEnergy(energy).has_value()) << bad;
    energy = Reading("x", 1);
    energy.set_parked_s(bad);
    EXPECT_FALSE(ToEnergy(energy).has_value()) << bad;
  }
}

TEST(Measurements, AnInvalidMeasurementDoesNotInvalidateTheReport) {
  v1::StepReport report;
  *report.mutable_cost() = GoodCost();
  report.mutable_cost()->set_residual_s(-1);
  *report.mutable_energy() = Reading("", 1);
  const auto converted = ToStepReport(report);
  ASSERT_TRUE(converted.ok()) << converted.status();
  EXPECT_FALSE(converted->cost.has_value());
  EXPECT_FALSE(converted->energy.has_value());
}

}  // namespace
}  // namespace bfio::router
