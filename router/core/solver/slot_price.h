// The cheapest way to fill a slot, were there an item of every load.
//
// Threads: any, plain data.
#ifndef BFIO_ROUTER_CORE_SOLVER_SLOT_PRICE_H_
#define BFIO_ROUTER_CORE_SOLVER_SLOT_PRICE_H_

namespace bfio::core {

struct SlotPrice {
  // The load at which the objective changes least, and the change there.
  double load = 0;
  double gain = 0;
};

}  // namespace bfio::core

#endif  // BFIO_ROUTER_CORE_SOLVER_SLOT_PRICE_H_
