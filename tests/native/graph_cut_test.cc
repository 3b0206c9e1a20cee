#include "native/tf/graph_cut.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <set>
#include <vector>

namespace millpond::tf {
namespace {

using Crossing = CutNode::Crossing;

// A node of one output of rows.
CutNode Rows(std::vector<NodeOutput> inputs, bool fits_device, int64_t row_bytes = 4) {
  CutNode node;
  node.inputs = std::move(inputs);
  node.outputs = {{Crossing::kAsRows, row_bytes}};
  node.fits_device = fits_device;
  return node;
}
CutNode Input(int64_t row_bytes = 4) {
  CutNode node = Rows({}, false, row_bytes);
  node.is_input = true;
  return node;
}
CutNode Constant() {
  CutNode node;
  node.outputs = {{}};
  node.fits_device = node.is_fixed = true;
  return node;
}
// A node whose output cannot cross.
CutNode Kept(std::vector<NodeOutput> inputs, bool fits_device) {
  CutNode node = Rows(std::move(inputs), fits_device);
  node.outputs = {{}};
  return node;
}

std::vector<int> Marked(const std::vector<bool>& flags) {
  std::vector<int> marked;
  for (size_t i = 0; i < flags.size(); ++i) {
    if (flags[i]) marked.push_back(static_cast<int>(i));
  }
  return marked;
}
using Numbers = std::vector<int>;
using NodeOutputs = std::vector<NodeOutput>;

TEST(GraphCut, AGraphThatFitsIsWholeOnTheDevice) {
  const std::vector<CutNode> nodes = {Input(), Constant(), Rows({{0, 0}, {1, 0}}, true)};
  const GraphCut cut = CutGraph(nodes, {{2, 0}}, {});
  EXPECT_EQ(Marked(cut.is_on_device), (Numbers{1, 2}));
  EXPECT_EQ(cut.crossing, (NodeOutputs{{0, 0}}));
  EXPECT_TRUE(cut.is_output_on_device[0]);
}

TEST(GraphCut, TheHostHasWhatANodeThatDoesNotFitNeeds) {
  const std::vector<CutNode> nodes = {Input(), Rows({{0, 0}}, true), Rows({{1, 0}}, false),
                                      Rows({{2, 0}}, true)};
  const GraphCut cut = CutGraph(nodes, {{3, 0}}, {});
  EXPECT_EQ(Marked(cut.is_on_host), (Numbers{0, 1, 2}));
  EXPECT_EQ(Marked(cut.is_on_device), (Numbers{3}));
  EXPECT_EQ(cut.crossing, (NodeOutputs{{2, 0}}));
}

TEST(GraphCut, AnOutputThatDoesNotFitKeepsTheRestOffTheDevice) {
  const std::vector<CutNode> nodes = {Input(), Rows({{0, 0}}, true), Rows({{1, 0}}, false)};
  const GraphCut cut = CutGraph(nodes, {{2, 0}}, {});
  EXPECT_FALSE(cut.HasDevicePart());
  EXPECT_EQ(Marked(cut.is_on_device), Numbers());
}

TEST(GraphCut, OutputsAreComputedWhereTheyFit) {
  const std::vector<CutNode> nodes = {Input(), Rows({{0, 0}}, false), Rows({{0, 0}}, true)};
  const GraphCut cut = CutGraph(nodes, {{1, 0}, {2, 0}}, {});
  EXPECT_EQ(cut.is_output_on_device, (std::vector<bool>{false, true}));
  EXPECT_EQ(cut.crossing, (NodeOutputs{{0, 0}}));
}

TEST(GraphCut, WhatCannotCrossTakesItsReaderToTheHost) {
  const std::vector<CutNode> nodes = {Input(), Kept({{0, 0}}, false), Rows({{1, 0}}, true),
                                      Rows({{2, 0}}, true)};
  const GraphCut cut = CutGraph(nodes, {{3, 0}}, {});
  EXPECT_EQ(Marked(cut.is_on_device), (Numbers{3}));
  EXPECT_EQ(cut.crossing, (NodeOutputs{{2, 0}}));
}

TEST(GraphCut, WhatBothNeedAndCannotCrossIsComputedTwice) {
  const std::vector<CutNode> nodes = {Input(), Kept({{0, 0}}, true), Rows({{1, 0}}, false),
                                      Rows({{1, 0}, {2, 0}}, true)};
  const GraphCut cut = CutGraph(nodes, {{3, 0}}, {});
  EXPECT_EQ(Marked(cut.is_on_host), (Numbers{0, 1, 2}));
  EXPECT_EQ(Marked(cut.is_on_device), (Numbers{1, 3}));
  EXPECT_EQ(cut.crossing, (NodeOutputs{{0, 0}, {2, 0}}));
}

TEST(GraphCut, ACountIsNoPartOfWhatCrosses) {
  CutNode count = Kept({{0, 0}}, false);
  count.outputs = {{Crossing::kAsCount, 0}};
  const std::vector<CutNode> nodes = {Input(), count, Rows({{0, 0}, {1, 0}}, true)};
  const GraphCut cut = CutGraph(nodes, {{2, 0}}, {});
  EXPECT_EQ(cut.counts, (NodeOutputs{{1, 0}}));
  EXPECT_EQ(cut.crossing, (NodeOutputs{{0, 0}}));
  EXPECT_EQ(Marked(cut.is_on_host), (Numbers{0}));
}

TEST(GraphCut, NothingCrossesOnlyToBeCounted) {
  CutNode count = Kept({{1, 0}}, true);
  count.outputs = {{Crossing::kAsCount, 0}};
  const std::vector<CutNode> nodes = {Input(), Input(8), count, Rows({{0, 0}, {2, 0}}, true)};
  const GraphCut cut = CutGraph(nodes, {{3, 0}}, {});
  EXPECT_EQ(cut.crossing, (NodeOutputs{{0, 0}}));
  EXPECT_EQ(cut.counts, (NodeOutputs{{2, 0}}));
}

TEST(GraphCut, AConstantOfBothPartsIsComputedTwice) {
  CutNode constant = Constant();
  constant.outputs = {{Crossing::kAsCount, 0}};
  const std::vector<CutNode> nodes = {Input(), constant, Rows({{0, 0}, {1, 0}}, false),
                                      Rows({{1, 0}, {2, 0}}, true)};
  const GraphCut cut = CutGraph(nodes, {{3, 0}}, {});
  EXPECT_EQ(Marked(cut.is_on_device), (Numbers{1, 3}));
  EXPECT_TRUE(cut.counts.empty());
}

TEST(GraphCut, EffectsAreOnTheHost) {
  const std::vector<CutNode> nodes = {Input(), Rows({{0, 0}}, true), Kept({{1, 0}}, false),
                                      Rows({{0, 0}}, true)};
  const GraphCut cut = CutGraph(nodes, {{3, 0}}, {2});
  EXPECT_EQ(Marked(cut.is_on_host), (Numbers{0, 1, 2}));
  EXPECT_EQ(Marked(cut.is_on_device), (Numbers{3}));
}

// Strings in node 1 make a host part; node 3 casts integers of 8 bytes to `cast_bytes`.
std::vector<CutNode> CastingGraph(int64_t cast_bytes) {
  CutNode cast = Rows({{1, 0}}, true, cast_bytes);
  cast.is_cheap = true;
  return {Input(), Rows({{0, 0}}, false, 8), cast, Rows({{2, 0}}, true)};
}

TEST(GraphCut, AnIntegerThatGetsSmallerIsCheaperOnTheHost) {
  std::vector<CutNode> nodes = CastingGraph(4);
  const NodeOutputs outputs = {{3, 0}};
  EXPECT_EQ(FindCheaperOnHost(nodes, CutGraph(nodes, outputs, {}), outputs), 2);
  nodes[2].fits_device = false;
  const GraphCut cut = CutGraph(nodes, outputs, {});
  EXPECT_EQ(cut.crossing, (NodeOutputs{{2, 0}}));
  EXPECT_EQ(FindCheaperOnHost(nodes, cut, outputs), -1);
}

TEST(GraphCut, AnIntegerThatGetsLargerStaysOnTheDevice) {
  const std::vector<CutNode> nodes = CastingGraph(16);
  const NodeOutputs outputs = {{3, 0}};
  EXPECT_EQ(FindCheaperOnHost(nodes, CutGraph(nodes, outputs, {}), outputs), -1);
}

TEST(GraphCut, ATensorThatIsReadBesideSavesNothing) {
  std::vector<CutNode> nodes = CastingGraph(4);
  nodes[3].inputs.push_back({1, 0});
  const NodeOutputs outputs = {{3, 0}};
  EXPECT_EQ(FindCheaperOnHost(nodes, CutGraph(nodes, outputs, {}), outputs), -1);
}

TEST(GraphCut, NothingIsMovedToAHostPartThatIsNotThere) {
  std::vector<CutNode> nodes = CastingGraph(4);
  nodes[1] = Input(8);
  const NodeOutputs outputs = {{3, 0}};
  EXPECT_EQ(FindCheaperOnHost(nodes, CutGraph(nodes, outputs, {}), outputs), -1);
}

std::vector<CutNode> RandomGraph(std::mt19937* random, int node_count) {
  const auto draw = [&](int below) { return static_cast<int>((*random)() % below); };
  std::vector<CutNode> nodes = {Input(), Input(8)};
  while (static_cast<int>(nodes.size()) < node_count) {
    std::vector<NodeOutput> inputs;
    for (int i = draw(3); i >= 0; --i) inputs.push_back({draw(static_cast<int>(nodes.size())), 0});
    CutNode node = draw(8) == 0 ? Constant() : Rows(std::move(inputs), draw(5) > 0, 1 + draw(9));
    if (draw(4) == 0) node.outputs[0].crossing = Crossing::kNever;
    if (draw(6) == 0) node.outputs[0].crossing = Crossing::kAsCount;
    node.is_cheap = draw(2) == 0;
    nodes.push_back(std::move(node));
  }
  return nodes;
}

// Fails unless each part can compute what it has, and the host part needs nothing of the device's.
void ExpectWhole(const std::vector<CutNode>& nodes, const NodeOutputs& outputs,
                 const GraphCut& cut) {
  const std::set<NodeOutput> crossing(cut.crossing.begin(), cut.crossing.end());
  const std::set<NodeOutput> counts(cut.counts.begin(), cut.counts.end());
  for (size_t i = 0; i < nodes.size(); ++i) {
    ASSERT_TRUE(!cut.is_on_device[i] || (nodes[i].fits_device && !nodes[i].is_input));
    for (const NodeOutput& input : nodes[i].inputs) {
      ASSERT_TRUE(!cut.is_on_host[i] || cut.is_on_host[input.node]);
      if (!cut.is_on_device[i] || counts.count(input) > 0) continue;
      ASSERT_TRUE(crossing.count(input) > 0 || cut.is_on_device[input.node]);
    }
  }
  for (const NodeOutput& tensor : crossing) {
    ASSERT_EQ(nodes[tensor.node].outputs[0].crossing, Crossing::kAsRows);
    ASSERT_TRUE(cut.is_on_host[tensor.node]);
  }
  for (size_t i = 0; i < outputs.size(); ++i) {
    const bool is_there = cut.is_output_on_device[i] ? cut.is_on_device[outputs[i].node]
                                                     : cut.is_on_host[outputs[i].node];
    ASSERT_TRUE(is_there);
  }
}

TEST(GraphCut, EachPartOfARandomGraphHasWhatItNeeds) {
  for (unsigned seed = 0; seed < 2'000; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937 random(seed);
    std::vector<CutNode> nodes = RandomGraph(&random, 24);
    const NodeOutputs outputs = {{23, 0}, {22, 0}, {static_cast<int>(random() % 24), 0}};
    const Numbers effects = {static_cast<int>(random() % 24)};
    GraphCut cut = CutGraph(nodes, outputs, effects);
    ExpectWhole(nodes, outputs, cut);
    int moved = FindCheaperOnHost(nodes, cut, outputs);
    for (int turns = 0; moved >= 0; ++turns) {
      ASSERT_LT(turns, 24);
      nodes[moved].fits_device = false;
      cut = CutGraph(nodes, outputs, effects);
      ExpectWhole(nodes, outputs, cut);
      moved = FindCheaperOnHost(nodes, cut, outputs);
    }
  }
}

}  // namespace
}  // namespace millpond::tf
