// Combines lambdas to one visitor of a std::variant.
#pragma once

namespace bfio {

// std::visit(Overloaded{[](const A&) {..}, [](const B&) {..}}, variant)
template <typename... Fs>
struct Overloaded : Fs... {
  using Fs::operator()...;
};
template <typename... Fs>
Overloaded(Fs...) -> Overloaded<Fs...>;

}  // namespace bfio
