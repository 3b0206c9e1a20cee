#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace millpond::tensor {

// Some outputs of one signature, by their index in Signature::outputs.
//
// A value, made for each request. Cost: no allocation for a signature of up to 64 outputs.
class OutputSet {
 public:
  // Makes the empty set of a signature without outputs.
  OutputSet() = default;
  // Makes an empty set. `output_count` is the number of outputs of the signature.
  explicit OutputSet(size_t output_count)
      : output_count_(output_count), more_(WordCount(output_count) - 1, 0) {}

  static OutputSet All(size_t output_count) {
    OutputSet outputs(output_count);
    for (size_t word = 0; word < WordCount(output_count); ++word) {
      const size_t left = output_count - word * kWordBits;
      outputs.Word(word) = left >= kWordBits ? ~uint64_t{0} : (uint64_t{1} << left) - 1;
    }
    outputs.size_ = output_count;
    return outputs;
  }

  // Adds an output. `index` is below output_count(). Does nothing if the set contains the output.
  void Add(size_t index) {
    if (Contains(index)) return;
    Word(index / kWordBits) |= uint64_t{1} << (index % kWordBits);
    size_ += 1;
  }

  bool Contains(size_t index) const {
    return (Word(index / kWordBits) >> (index % kWordBits) & 1) != 0;
  }
  // The number of outputs in the set.
  size_t size() const { return size_; }
  // The number of outputs of the signature.
  size_t output_count() const { return output_count_; }
  bool IsAll() const { return size_ == output_count_; }

  // Returns the number of outputs of the set before `index`, which is the position of the output's
  // tensor in the result of a run. The result holds only the outputs of the set, in the signature's
  // order.
  size_t Rank(size_t index) const {
    size_t rank = 0;
    for (size_t word = 0; word < index / kWordBits; ++word) rank += BitCount(Word(word));
    const uint64_t below = (uint64_t{1} << (index % kWordBits)) - 1;
    return rank + BitCount(Word(index / kWordBits) & below);
  }

  uint64_t Hash() const {
    uint64_t hash = output_count_;
    for (size_t word = 0; word < WordCount(output_count_); ++word) {
      hash = (hash ^ Word(word)) * 0x9e3779b97f4a7c15ULL;
      hash ^= hash >> 32;
    }
    return hash;
  }

  friend bool operator==(const OutputSet& a, const OutputSet& b) {
    return a.first_ == b.first_ && a.output_count_ == b.output_count_ && a.more_ == b.more_;
  }

 private:
  static constexpr size_t kWordBits = 64;

  // Returns the number of words; at least 1, which is first_.
  static size_t WordCount(size_t output_count) {
    return output_count <= kWordBits ? 1 : (output_count + kWordBits - 1) / kWordBits;
  }
  static size_t BitCount(uint64_t word) { return __builtin_popcountll(word); }

  uint64_t& Word(size_t word) { return word == 0 ? first_ : more_[word - 1]; }
  const uint64_t& Word(size_t word) const { return word == 0 ? first_ : more_[word - 1]; }

  size_t output_count_ = 0;
  size_t size_ = 0;
  uint64_t first_ = 0;
  std::vector<uint64_t> more_;  // for the outputs from 64 on
};

}  // namespace millpond::tensor
