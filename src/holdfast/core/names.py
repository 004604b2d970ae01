"""The words of friendly names. Adding or removing one renames sessions, so the lists are fixed."""

ADJECTIVES = tuple(
    """
    able agile alert amber ample apt arctic ashen autumn azure balmy bold brave breezy brief
    bright brisk bronze calm candid careful cedar cheerful civil clean clear clever coastal
    cobalt cool copper coral cosmic cosy crisp curious dapper daring dawn deep deft desert
    distant dusty eager early earnest easy ebony elder emerald even evening fair faithful
    fancy fast fearless fern fierce fine firm first fleet fond forest frank free fresh
    frosty gallant gentle gilded glad gleaming golden good grand grassy gray great green
    hardy hazel hearty hidden high honest humble icy idle inner ivory jade jolly keen kind
    lasting late lavish leafy light lively long loyal lucid lucky lunar magic maple marble
    mellow merry mighty mild mint misty modest mossy narrow neat nimble noble northern novel
    oaken old olive opal open patient pearl placid plain plucky polar polite prime proud
    quick quiet rapid rare ready regal rich ripe rising robust rosy round royal ruby rustic
    sable sandy scarlet serene shady sharp shining silent silver simple sleek slow smart
    smooth snowy soft solar solid sonic southern spry stable starry steady still stout
    sturdy subtle sunny sure swift tall tame teal tender tidal tidy tough tranquil true
    trusty upbeat urban vast velvet verdant vivid warm wary wide wild willing windy winter
    wise witty woven young zesty
    """.split()
)

NOUNS = tuple(
    """
    acorn alder anchor antler apple arbor arch arrow ash aspen atlas aurora badger bay
    beacon beaver birch bison bluff bower bramble breeze briar bridge brook buoy cabin canoe
    canyon cape castle cavern cedar cliff cloud clover coast comet condor cove crane creek
    crest crow crystal current cypress dale dawn delta dove dune eagle earth echo elk elm
    ember estuary falcon fawn feather fern field finch fjord flame flint forest forge
    fountain fox gale garden garnet gate geyser glacier glade glen goose grove gull harbor
    hare harvest hawk hazel heath heather heron hill hollow horizon ibis inlet island ivy
    jasper jetty juniper kelp kestrel kite knoll lagoon lake lantern larch lark laurel leaf
    ledge lichen lily lion lodge lotus lynx magnet maple marsh meadow mesa mill mist moon
    moor moose moss mountain nest oak oasis ocean orbit orchard orchid osprey otter owl palm
    panda path pebble pelican peony perch petal pier pike pine plain planet plover pond
    poplar prairie quail quarry quartz quill raft rain rapids raven reed reef ridge river
    robin rock rook rose rowan sage sail salmon sand sea seal shale shell shore sky slate
    sloop snow spark sparrow spring spruce star stone storm stream summit sun swallow swan
    tarn tern thicket thistle thunder tide tiger timber torch tower trail trout tulip tundra
    valley vine violet wagon walnut warbler wave weir whale willow wind wolf wood wren
    yarrow zephyr
    """.split()
)
