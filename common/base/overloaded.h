// Combines lambdas to one visitor of a std::variant.
#ifndef BFIO_COMMON_BASE_OVERLOADED_H_
#define BFIO_COMMON_BASE_OVERLOADED_H_

namespace bfio {

// std::visit(Overloaded{[](const A&) {..}, [](const B&) {..}}, variant)
template <typename... Fs>
struct Overloaded : Fs... {
  using Fs::operator()...;
};
template <typename... Fs>
Overloaded(Fs...) -> Overloaded<Fs...>;

}  // namespace bfio

#endif  // BFIO_COMMON_BASE_OVERLOADED_H_
