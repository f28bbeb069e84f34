// A sum in another order, or with wider partial sums, has other bits: the oracle would differ
// from every engine. So the vector code is compared with one line of plain code, bit by bit.
#include "collectives/simulated/rank_order_sum.h"

#include <cstdint>
#include <vector>

#include "gtest/gtest.h"

namespace shardproof {
namespace {

template <typename T>
std::vector<std::vector<T>> InputsThatRound(int ranks, int64_t count) {
  std::vector<std::vector<T>> inputs(ranks, std::vector<T>(count));
  uint64_t state = 1;
  for (std::vector<T>& input : inputs) {
    for (T& value : input) {
      state = state * 6364136223846793005 + 1442695040888963407;
      const int exponent = static_cast<int>(state >> 60);
      value = static_cast<T>(static_cast<int64_t>(state >> 11) - (int64_t{1} << 52)) /
              static_cast<T>(uint64_t{1} << (exponent * 3));
    }
  }
  return inputs;
}

template <typename T>
std::vector<T> PlainSum(const std::vector<std::vector<T>>& inputs) {
  std::vector<T> sum = inputs[0];
  for (size_t rank = 1; rank < inputs.size(); ++rank) {
    for (size_t i = 0; i < sum.size(); ++i) sum[i] = sum[i] + inputs[rank][i];
  }
  return sum;
}

// `in_place` is the rank whose input receives the sum, or -1.
template <typename T>
std::vector<T> FastSum(std::vector<std::vector<T>> inputs, int in_place) {
  const int64_t count = inputs[0].size();
  std::vector<const T*> pointers;
  for (const std::vector<T>& input : inputs) pointers.push_back(input.data());
  std::vector<T> apart(count);
  std::vector<T>& sum = in_place < 0 ? apart : inputs[in_place];
  SumInRankOrder(pointers, count, sum.data());
  return sum;
}

template <typename T>
void ExpectSumsOfPlainCode() {
  for (const int ranks : {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 17}) {
    for (const int64_t count : {0, 1, 2, 3, 7, 127, 1024, 1025, 4099}) {
      const auto inputs = InputsThatRound<T>(ranks, count);
      for (int in_place = -1; in_place < ranks; ++in_place) {
        EXPECT_EQ(FastSum(inputs, in_place), PlainSum(inputs))
            << ranks << " ranks, " << count << " elements, in place of rank " << in_place;
      }
    }
  }
}

TEST(SumInRankOrder, HasTheBitsOfPlainCodeInFloat32) { ExpectSumsOfPlainCode<float>(); }

TEST(SumInRankOrder, HasTheBitsOfPlainCodeInFloat64) { ExpectSumsOfPlainCode<double>(); }

TEST(SumInRankOrder, DependsOnTheOrderOfRanks) {
  const float big = 1e8f;
  EXPECT_EQ(FastSum<float>({{big}, {1}, {-big}, {1}}, -1), std::vector<float>({1}));
  EXPECT_EQ(FastSum<float>({{big}, {-big}, {1}, {1}}, -1), std::vector<float>({2}));
}

TEST(SumInRankOrder, TouchesNothingWithoutElements) {
  const std::vector<const float*> nothing(3, nullptr);
  SumInRankOrder(nothing, 0, nullptr);
}

}  // namespace
}  // namespace shardproof
