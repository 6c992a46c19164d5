// A server that speaks as much of S3 as benchmarks need, and keeps nothing but lengths.
//
// Bodies are thrown away, and read back as zeros; no signature, checksum or condition is looked at.
// What a client costs by itself shows next to it. All is gone when it ends.
//
//	sink ADDRESS DIRECTORY
//
// The directory is not used: `stop` knows its server by it.
package main

import (
	"encoding/xml"
	"fmt"
	"io"
	"log"
	"net/http"
	"os"
	"sort"
	"strconv"
	"strings"
	"sync"
	"time"
)

const (
	pieceBytes    = 1 << 20
	listedAtATime = 1000
	namespace     = "http://s3.amazonaws.com/doc/2006-03-01/"
)

type object struct {
	Key          string
	LastModified string
	ETag         string
	Size         int64
	StorageClass string

	modified time.Time
}

type upload struct {
	Key       string
	UploadId  string
	Initiated string

	bucket string
	parts  map[string]int64
}

type failure struct {
	XMLName xml.Name `xml:"Error"`
	Code    string
	Message string
}

type prefixed struct{ Prefix string }

type listing struct {
	XMLName               xml.Name `xml:"ListBucketResult"`
	Namespace             string   `xml:"xmlns,attr"`
	Name                  string
	Prefix                string
	Delimiter             string `xml:",omitempty"`
	KeyCount              int
	MaxKeys               int
	IsTruncated           bool
	NextContinuationToken string `xml:",omitempty"`
	NextMarker            string `xml:",omitempty"`
	Contents              []*object
	CommonPrefixes        []prefixed
}

type uploads struct {
	XMLName     xml.Name `xml:"ListMultipartUploadsResult"`
	Namespace   string   `xml:"xmlns,attr"`
	Bucket      string
	Prefix      string
	MaxUploads  int
	IsTruncated bool
	Upload      []*upload
}

type began struct {
	XMLName               xml.Name `xml:"InitiateMultipartUploadResult"`
	Namespace             string   `xml:"xmlns,attr"`
	Bucket, Key, UploadId string
}

type completed struct {
	XMLName                     xml.Name `xml:"CompleteMultipartUploadResult"`
	Namespace                   string   `xml:"xmlns,attr"`
	Location, Bucket, Key, ETag string
}

type deletion struct {
	Quiet  bool
	Object []struct{ Key string }
}

type deleted struct {
	XMLName   xml.Name `xml:"DeleteResult"`
	Namespace string   `xml:"xmlns,attr"`
	Deleted   []struct{ Key string }
}

type location struct {
	XMLName   xml.Name `xml:"LocationConstraint"`
	Namespace string   `xml:"xmlns,attr"`
}

type sink struct {
	lock    sync.Mutex
	buckets map[string]map[string]*object
	uploads map[string]*upload
	count   int
}

var (
	zeros  = make([]byte, pieceBytes)
	pieces = sync.Pool{New: func() any { return make([]byte, pieceBytes) }}
)

func main() {
	if len(os.Args) != 3 {
		log.Fatal("usage: sink ADDRESS DIRECTORY")
	}
	server := &sink{buckets: map[string]map[string]*object{}, uploads: map[string]*upload{}}
	log.Fatal(http.ListenAndServe(os.Args[1], server))
}

func (s *sink) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	bucket, key, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, "/"), "/")
	query := r.URL.Query()
	switch {
	case bucket == "":
		fail(w, http.StatusNotImplemented, "NotImplemented")
	case key == "":
		s.serveBucket(w, r, bucket, query)
	case query.Has("uploads") && r.Method == http.MethodPost:
		s.begin(w, bucket, key)
	case query.Has("uploadId"):
		s.serveUpload(w, r, bucket, key, query.Get("uploadId"), query.Get("partNumber"))
	default:
		s.serveObject(w, r, bucket, key)
	}
}

type values interface {
	Get(string) string
	Has(string) bool
}

func (s *sink) serveBucket(w http.ResponseWriter, r *http.Request, bucket string, query values) {
	switch {
	case r.Method == http.MethodPost && query.Has("delete"):
		s.deleteObjects(w, r, bucket)
	case r.Method == http.MethodGet && query.Has("location"):
		answer(w, location{Namespace: namespace})
	case r.Method == http.MethodGet && query.Has("uploads"):
		s.listUploads(w, bucket, query.Get("prefix"))
	case r.Method == http.MethodGet:
		s.list(w, bucket, query)
	case r.Method == http.MethodDelete:
		s.lock.Lock()
		delete(s.buckets, bucket)
		s.lock.Unlock()
		w.WriteHeader(http.StatusNoContent)
	case r.Method == http.MethodPut || r.Method == http.MethodHead:
		discard(r)
		w.Header().Set("x-amz-bucket-region", "us-east-1")
	default:
		fail(w, http.StatusNotImplemented, "NotImplemented")
	}
}

func (s *sink) serveObject(w http.ResponseWriter, r *http.Request, bucket, key string) {
	switch r.Method {
	case http.MethodPut:
		length, err := discard(r)
		if err != nil {
			return // the client left
		}
		w.Header().Set("ETag", s.put(bucket, key, length))
	case http.MethodGet, http.MethodHead:
		s.lock.Lock()
		found := s.buckets[bucket][key]
		s.lock.Unlock()
		if found == nil {
			fail(w, http.StatusNotFound, "NoSuchKey")
			return
		}
		send(w, r, found)
	case http.MethodDelete:
		s.lock.Lock()
		delete(s.buckets[bucket], key)
		s.lock.Unlock()
		w.WriteHeader(http.StatusNoContent)
	default:
		fail(w, http.StatusNotImplemented, "NotImplemented")
	}
}

func (s *sink) serveUpload(w http.ResponseWriter, r *http.Request, bucket, key, id, part string) {
	length, err := discard(r)
	if err != nil {
		return // the client left
	}
	s.lock.Lock()
	found := s.uploads[id]
	if found != nil && r.Method == http.MethodPut {
		found.parts[part] = length
	} else if found != nil {
		delete(s.uploads, id)
	}
	s.lock.Unlock()
	switch {
	case found == nil:
		fail(w, http.StatusNotFound, "NoSuchUpload")
	case r.Method == http.MethodPut:
		w.Header().Set("ETag", fmt.Sprintf("%q", id+"-"+part))
	case r.Method == http.MethodDelete:
		w.WriteHeader(http.StatusNoContent)
	default:
		var total int64
		for _, length := range found.parts {
			total += length
		}
		etag := s.put(bucket, key, total)
		answer(w, completed{
			Namespace: namespace, Location: r.URL.Path, Bucket: bucket, Key: key, ETag: etag,
		})
	}
}

func (s *sink) begin(w http.ResponseWriter, bucket, key string) {
	s.lock.Lock()
	s.count++
	id := fmt.Sprintf("upload-%08d", s.count)
	s.uploads[id] = &upload{
		Key: key, UploadId: id, Initiated: stamp(time.Now()),
		bucket: bucket, parts: map[string]int64{},
	}
	s.lock.Unlock()
	answer(w, began{Namespace: namespace, Bucket: bucket, Key: key, UploadId: id})
}

func (s *sink) put(bucket, key string, length int64) string {
	s.lock.Lock()
	defer s.lock.Unlock()
	s.count++
	now := time.Now().UTC()
	etag := fmt.Sprintf("\"%032x\"", s.count)
	if s.buckets[bucket] == nil {
		s.buckets[bucket] = map[string]*object{}
	}
	s.buckets[bucket][key] = &object{
		Key: key, LastModified: stamp(now), ETag: etag, Size: length, StorageClass: "STANDARD",
		modified: now,
	}
	return etag
}

func (s *sink) deleteObjects(w http.ResponseWriter, r *http.Request, bucket string) {
	var wanted deletion
	if strings.Contains(r.Header.Get("Content-Encoding"), "aws-chunked") {
		fail(w, http.StatusNotImplemented, "NotImplemented")
		return
	}
	if xml.NewDecoder(r.Body).Decode(&wanted) != nil {
		fail(w, http.StatusBadRequest, "MalformedXML")
		return
	}
	discard(r)
	result := deleted{Namespace: namespace}
	s.lock.Lock()
	for _, one := range wanted.Object {
		delete(s.buckets[bucket], one.Key)
		if !wanted.Quiet {
			result.Deleted = append(result.Deleted, struct{ Key string }{one.Key})
		}
	}
	s.lock.Unlock()
	answer(w, result)
}

func (s *sink) listUploads(w http.ResponseWriter, bucket, prefix string) {
	result := uploads{Namespace: namespace, Bucket: bucket, Prefix: prefix, MaxUploads: 1000}
	s.lock.Lock()
	for _, one := range s.uploads {
		if one.bucket == bucket && strings.HasPrefix(one.Key, prefix) {
			result.Upload = append(result.Upload, one)
		}
	}
	s.lock.Unlock()
	answer(w, result)
}

func (s *sink) list(w http.ResponseWriter, bucket string, query values) {
	prefix, delimiter := query.Get("prefix"), query.Get("delimiter")
	after := max(query.Get("continuation-token"), query.Get("start-after"), query.Get("marker"))
	most := listedAtATime
	if asked, err := strconv.Atoi(query.Get("max-keys")); err == nil {
		most = min(most, asked)
	}
	result := listing{
		Namespace: namespace, Name: bucket, Prefix: prefix, Delimiter: delimiter, MaxKeys: most,
	}
	last, common := "", ""
	for _, one := range s.sorted(bucket, prefix, after) {
		// A prefix that ended the page before stands for all keys below it.
		if delimiter != "" && strings.HasSuffix(after, delimiter) && after != prefix &&
			strings.HasPrefix(one.Key, after) {
			continue
		}
		directory, _, below := strings.Cut(one.Key[len(prefix):], delimiter)
		below = below && delimiter != ""
		if directory = prefix + directory + delimiter; below && directory == common {
			continue
		}
		if result.KeyCount == most {
			result.IsTruncated = true
			result.NextContinuationToken, result.NextMarker = last, last
			break
		}
		result.KeyCount++
		if below {
			common, last = directory, directory
			result.CommonPrefixes = append(result.CommonPrefixes, prefixed{directory})
		} else {
			last = one.Key
			result.Contents = append(result.Contents, one)
		}
	}
	answer(w, result)
}

// sorted returns the objects with a prefix that come after a key.
func (s *sink) sorted(bucket, prefix, after string) []*object {
	var found []*object
	s.lock.Lock()
	for key, one := range s.buckets[bucket] {
		if strings.HasPrefix(key, prefix) && key > after {
			found = append(found, one)
		}
	}
	s.lock.Unlock()
	sort.Slice(found, func(i, j int) bool { return found[i].Key < found[j].Key })
	return found
}

// discard reads a body and returns the length of what it carries.
func discard(r *http.Request) (int64, error) {
	piece := pieces.Get().([]byte)
	defer pieces.Put(piece)
	var length int64
	for {
		count, err := r.Body.Read(piece)
		length += int64(count)
		if err == io.EOF {
			break
		}
		if err != nil {
			return 0, err
		}
	}
	if decoded := r.Header.Get("x-amz-decoded-content-length"); decoded != "" {
		return strconv.ParseInt(decoded, 10, 64)
	}
	return length, nil
}

// send answers with zeros, or with the range of them that is asked for.
func send(w http.ResponseWriter, r *http.Request, found *object) {
	first, end, status := int64(0), found.Size, http.StatusOK
	if wanted, ok := strings.CutPrefix(r.Header.Get("Range"), "bytes="); ok {
		from, to, _ := strings.Cut(wanted, "-")
		if from == "" {
			count, _ := strconv.ParseInt(to, 10, 64)
			first = max(0, end-count)
		} else {
			first, _ = strconv.ParseInt(from, 10, 64)
			if last, err := strconv.ParseInt(to, 10, 64); err == nil {
				end = min(end, last+1)
			}
		}
		if first >= found.Size {
			fail(w, http.StatusRequestedRangeNotSatisfiable, "InvalidRange")
			return
		}
		status = http.StatusPartialContent
		w.Header().Set("Content-Range", fmt.Sprintf("bytes %d-%d/%d", first, end-1, found.Size))
	}
	w.Header().Set("Accept-Ranges", "bytes")
	w.Header().Set("Content-Length", strconv.FormatInt(end-first, 10))
	w.Header().Set("Content-Type", "application/octet-stream")
	w.Header().Set("ETag", found.ETag)
	w.Header().Set("Last-Modified", found.modified.Format(http.TimeFormat))
	w.WriteHeader(status)
	if r.Method == http.MethodHead {
		return
	}
	for left := end - first; left > 0; {
		count, err := w.Write(zeros[:min(left, pieceBytes)])
		if err != nil {
			return // the client left
		}
		left -= int64(count)
	}
}

func answer(w http.ResponseWriter, result any) {
	body, err := xml.Marshal(result)
	if err != nil {
		panic(err)
	}
	w.Header().Set("Content-Type", "application/xml")
	io.WriteString(w, xml.Header)
	w.Write(body)
}

func fail(w http.ResponseWriter, status int, code string) {
	w.Header().Set("Content-Type", "application/xml")
	w.WriteHeader(status)
	body, _ := xml.Marshal(failure{Code: code, Message: "from the sink"})
	w.Write(body)
}

func stamp(moment time.Time) string {
	return moment.UTC().Format("2006-01-02T15:04:05.000Z")
}
