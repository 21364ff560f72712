// Workers' figures at the router's door, and the energy of devices that workers share.
#include "router/group/worker_figures.h"

#include <gtest/gtest.h>

#include <limits>

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

TEST(WorkerFigures, CostsComeThroughAndBack) {
  const v1::StepCost cost = GoodCost();
  const auto converted = ConvertCost(cost);
  ASSERT_TRUE(converted.has_value());
  EXPECT_EQ(converted->tl->value, 1e-7);
  EXPECT_EQ(converted->steps, 640);
  v1::StepCost back;
  FillCost(*converted, back);
  EXPECT_EQ(back.SerializeAsString(), cost.SerializeAsString());
  const auto unknown = ConvertCost(v1::StepCost());
  ASSERT_TRUE(unknown.has_value());
  EXPECT_FALSE(unknown->c || unknown->tl || unknown->prefill);
}

TEST(WorkerFigures, NonsenseIsNoCost) {
  for (const double bad :
       {std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity(), -1e-9, 1e30}) {
    for (int field = 0; field < 5; ++field) {
      v1::StepCost cost = GoodCost();
      if (field == 0) cost.mutable_c_s()->set_value(bad);
      if (field == 1) cost.mutable_tl_s_per_token()->set_value(bad);
      if (field == 2) cost.mutable_tl_s_per_token()->set_standard_error(bad);
      if (field == 3) cost.mutable_prefill_s_per_token()->set_value(bad);
      if (field == 4) cost.set_residual_s(bad);
      EXPECT_FALSE(ConvertCost(cost).has_value()) << bad << " " << field;
    }
  }
  v1::StepCost cost = GoodCost();
  cost.set_steps(std::numeric_limits<uint64_t>::max());
  EXPECT_FALSE(ConvertCost(cost).has_value());
}

v1::Energy Reading(const std::string& device, double scale) {
  v1::Energy energy;
  energy.set_device(device);
  energy.set_busy_j(100 * scale);
  energy.set_barrier_j(10 * scale);
  energy.set_parked_j(scale);
  return energy;
}

TEST(WorkerFigures, ASharedDeviceIsCountedOnce) {
  EnergyBook book;
  EXPECT_FALSE(book.totals().has_value());
  WorkerFigures a, b, c;
  // What was drawn before the first reading is not of this router's time.
  book.Take(Reading("x", 7), a, {&b, &c});
  book.Take(Reading("x", 7), b, {&a, &c});
  book.Take(Reading("y", 7), c, {&a, &b});
  ASSERT_TRUE(book.totals().has_value());
  EXPECT_EQ(book.totals()->busy_j(), 0);
  book.Take(Reading("x", 9), a, {&b, &c});
  book.Take(Reading("x", 9), b, {&a, &c});
  book.Take(Reading("y", 8), c, {&a, &b});
  EXPECT_DOUBLE_EQ(book.totals()->busy_j(), 100 * 3);
  EXPECT_DOUBLE_EQ(book.totals()->barrier_j(), 10 * 3);
  EXPECT_DOUBLE_EQ(book.totals()->parked_j(), 3);
  // The worker has begun anew, or has moved.
  book.Take(Reading("y", 1), c, {&a, &b});
  book.Take(Reading("z", 100), c, {&a, &b});
  EXPECT_DOUBLE_EQ(book.totals()->busy_j(), 100 * 3);
  book.Take(Reading("z", 101), c, {&a, &b});
  EXPECT_DOUBLE_EQ(book.totals()->busy_j(), 100 * 4);
}

TEST(WorkerFigures, NonsenseIsNoEnergy) {
  EnergyBook book;
  WorkerFigures figures;
  book.Take(Reading("", 1), figures, {});
  book.Take(Reading(std::string(1000, 'x'), 1), figures, {});
  for (const double bad :
       {std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity(), -1.0}) {
    v1::Energy energy = Reading("x", 1);
    energy.set_watts(bad);
    book.Take(energy, figures, {});
    energy = Reading("x", 1);
    energy.set_parked_s(bad);
    book.Take(energy, figures, {});
  }
  EXPECT_FALSE(figures.energy.has_value());
  EXPECT_FALSE(book.totals().has_value());
}

}  // namespace
}  // namespace bfio::router
