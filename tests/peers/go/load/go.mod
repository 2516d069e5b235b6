module antiphon.test/load

go 1.25

require github.com/HdrHistogram/hdrhistogram-go v1.2.0
